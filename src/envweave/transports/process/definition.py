"""An environment's definition on its way to another process of the same user.

What a module defines travels as an import path. What a script, a notebook or a function
defines travels by value, with whatever its type hints name.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from envweave.errors import DefinitionError, in_words
from envweave.registry import EnvSpec, Options
from envweave.transports.process.channel import pack_by_value


def pack_definition(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, *rest: Any
) -> bytes:
    """Return a definition as bytes.

    Raises:
        DefinitionError: It holds something that cannot be sent.
    """
    roots = [spec.factory, spec.transform, *spec.kwargs.values(), *kwargs.values()]
    files = {
        module.__name__: str(module.__file__)
        for module in _modules_of(roots)
        if not _can_be_imported(module)
    }
    try:
        parts = (_named_in_main(), spec, dict(kwargs), options, *rest)
        return pickle.dumps((files, pack_by_value(parts)))
    except Exception as error:
        raise DefinitionError(
            f"{spec.id!r} cannot be sent to a worker process: {in_words(error)}. Pass an ID, or a "
            "class or function that a module defines, and what it needs as keywords."
        ) from error


def load_definition(packed: bytes | bytearray) -> tuple[Any, ...]:
    """Return what was packed, in the process that it was sent to.

    Raises:
        DefinitionError: It needs a module that is not found here.
    """
    try:
        files, parts = pickle.loads(packed)  # noqa: S301 - from our own trainer
        for name, file in files.items():
            _load_file(name, file)
        names, spec, kwargs, *rest = pickle.loads(parts)  # noqa: S301
    except Exception as error:
        raise DefinitionError(
            f"A worker process cannot load the environment's definition: {in_words(error)}. "
            "Define it in a module that can be imported by its name."
        ) from error
    vars(sys.modules["__main__"]).update(names)
    for function in _functions_of([spec.factory, spec.transform, *names.values()]):
        _complete(function)
    return spec, kwargs, *rest


def _modules_of(values: Iterable[Any]) -> Iterator[ModuleType]:
    for value in values:
        for one in value.__mro__ if isinstance(value, type) else (value, type(value)):
            module = sys.modules.get(getattr(one, "__module__", None) or "")
            if module is not None:
                yield module


def _can_be_imported(module: ModuleType) -> bool:
    """Whether another process that looks in the same places finds this module by its name."""
    if module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return True  # the one always travels by value, the others are built in
    path: Any = None
    found: Any = None
    name = ""
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        looks = (finder.find_spec(name, path) for finder in sys.meta_path)
        found = next((one for one in looks if one is not None), None)
        if found is None:
            return False
        path = found.submodule_search_locations
    return bool(found.origin == module.__file__)


def _load_file(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _named_in_main() -> dict[str, Any]:
    """Return what the type hints in the main module name, since no code refers to it."""
    main = vars(sys.modules["__main__"])
    hints: set[str] = set()
    for value in list(main.values()):
        if getattr(value, "__module__", None) == "__main__":
            for one in (value, *_functions_of([value])):
                noted = getattr(one, "__annotations__", {}).values()
                hints.update(hint for hint in noted if isinstance(hint, str))
    return {name: main[name] for name in _names_in(hints) if name in main}


def _names_in(hints: Iterable[str]) -> set[str]:
    names: set[str] = set()
    for hint in hints:
        try:
            tree = ast.parse(hint, mode="eval")
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= _names_in([node.value])
    return names


def _functions_of(values: Iterable[Any]) -> Iterator[FunctionType]:
    """Go through functions, and those of classes."""
    for value in values:
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type):
            for cls in value.__mro__:
                yield from (one for one in vars(cls).values() if isinstance(one, FunctionType))


def _complete(function: FunctionType) -> None:
    """Give a function that came by value the names in its hints, from its module."""
    hints = [hint for hint in function.__annotations__.values() if isinstance(hint, str)]
    missing = [name for name in _names_in(hints) if name not in function.__globals__]
    if not missing:
        return
    try:
        home = vars(importlib.import_module(function.__module__))
    except ImportError:
        return
    function.__globals__.update({name: home[name] for name in missing if name in home})
