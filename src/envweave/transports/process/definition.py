"""An environment's definition on its way to another process of the same user."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import cloudpickle

from envweave.errors import DefinitionError, in_words
from envweave.registry import EnvSpec, Options
from envweave.transports.process.channel import pack_by_value


def pack_definition(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, *rest: Any
) -> bytes:
    """Return a definition as bytes: an import path where there is one, else by value.

    Raises:
        DefinitionError: It holds something that cannot be sent.
    """
    for value in (spec.factory, spec.transform, *spec.kwargs.values(), *kwargs.values()):
        module = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
        if module is not None and not _can_be_imported(module):
            cloudpickle.register_pickle_by_value(module)
    try:
        return pack_by_value((spec, dict(kwargs), options, *rest))
    except Exception as error:
        raise DefinitionError(
            f"{spec.id!r} cannot be sent to a worker process: {in_words(error)}. Pass an ID, or a "
            "class or function that a module defines, and what it needs as keywords."
        ) from error


def _can_be_imported(module: ModuleType) -> bool:
    """Whether another process that looks in the same places finds this module by its name."""
    if module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return True  # the one always travels by value, the others are built in
    try:
        found = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError, AttributeError):
        return False
    return found is not None and found.origin == module.__file__
