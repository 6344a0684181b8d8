"""Recognizes environments: ours pass, those of other libraries are adapted, the rest is refused."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, final

from envweave.adapters import openenv
from envweave.environment import Environment, Interface
from envweave.errors import DefinitionError


def adopt(candidate: Any) -> Environment:
    """Return an `Environment` for an object that a factory made.

    Takes our own, Gymnasium's, PettingZoo's, OpenEnv's and verifiers' environments, and any other
    object with `reset` and `step` methods that return tuples or results.

    Raises:
        DefinitionError: It is none of these.
    """
    if isinstance(candidate, Environment):
        return candidate.unwrap()
    if isinstance(candidate, type):
        raise DefinitionError(f"{candidate.__name__} is a class; an instance of it is needed.")
    # An object of a library can only exist if that library was imported.
    if "gymnasium" in sys.modules:
        from envweave.adapters import gymnasium

        if gymnasium.is_foreign(candidate):
            return gymnasium.from_gymnasium(candidate)
    if "pettingzoo" in sys.modules:
        from envweave.adapters import pettingzoo

        if pettingzoo.is_foreign(candidate):
            return pettingzoo.from_pettingzoo(candidate)
    if "verifiers" in sys.modules:
        from envweave.adapters.verifiers import environments

        if environments.is_foreign(candidate):
            return environments.from_verifiers(candidate)
    if openenv.is_foreign(candidate):
        return openenv.from_openenv(candidate)
    missing = [name for name in ("reset", "step") if not callable(getattr(candidate, name, None))]
    if missing:
        raise DefinitionError(
            f"{type(candidate).__name__} is not an environment: it has no {missing[0]}(). Subclass "
            "envweave.Environment, or give it reset() and step()."
        )
    return GymLike(candidate)


@final
class GymLike(Environment):
    """Any object with `reset` and `step`, as an `Environment`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.deterministic = getattr(inner, "deterministic", True)
        self.tasks = getattr(inner, "tasks", None)
        # Bound here to save a call per step, and to keep the object's hints and async methods.
        self.reset = inner.reset  # type: ignore[method-assign]
        self.step = inner.step  # type: ignore[method-assign]
        if callable(getattr(inner, "close", None)):
            self.close = inner.close  # type: ignore[method-assign]

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Replaced by the object's own."""

    def step(self, action: Any) -> Any:
        """Replaced by the object's own."""

    def describe(self) -> Interface:
        """Describe the object by its own name."""
        return dataclasses.replace(super().describe(), name=type(self.inner).__name__)
