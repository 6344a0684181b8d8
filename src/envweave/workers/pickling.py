"""An environment's definition on its way to another process of the same user.

What a module defines travels as an import path. What a script, a notebook or a function
defines travels by value, with whatever its type hints name.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, final

import cloudpickle

from envweave.errors import (
    ActionError,
    BadReturnError,
    DefinitionError,
    ResetFailedError,
    format_error,
)
from envweave.registry import EnvSpec, MakeOptions
from envweave.session import Session
from envweave.session.results import join_start
from envweave.types import EpisodeEnd, ResetResult, StepResult
from envweave.vector.episode_tracker import lost_result
from envweave.workers.channel import pack


def pack_definition(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, *rest: Any
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
        parts, named = _pack((spec, dict(kwargs), options, *rest))
        while True:  # what hints name has hints of its own
            names, found = _pack(named)
            if found.keys() <= named.keys():
                break
            named |= found
        return pickle.dumps((files, names, parts))
    except Exception as error:
        raise DefinitionError(
            f"{spec.id!r} cannot be sent to a worker process: {format_error(error)}. "
            "Pass an ID, or a "
            "class or function that a module defines, and what it needs as keywords."
        ) from error


def load_definition(packed: bytes | bytearray) -> tuple[Any, ...]:
    """Return what was packed, in the process that it was sent to.

    Raises:
        DefinitionError: It needs a module that is not found here.
    """
    try:
        files, names, parts = pickle.loads(packed)  # noqa: S301 - from our own trainer
        for name, file in files.items():
            _load_file(name, file)
        loaded: tuple[Any, ...] = pickle.loads(parts)  # noqa: S301
        vars(sys.modules["__main__"]).update(pickle.loads(names))  # noqa: S301
    except Exception as error:
        raise DefinitionError(
            f"A worker process cannot load the environment's definition: {format_error(error)}. "
            "Define it in a module that can be imported by its name."
        ) from error
    return loaded


def _pack(value: Any) -> tuple[bytes, dict[str, Any]]:
    """Return a value as bytes, and what the hints of its classes name in the main module."""
    with io.BytesIO() as file:
        pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.dump(value)
        return file.getvalue(), pickler.named


@final
class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Takes along what type hints name, which code does not refer to.

    Attributes:
        named: What the hints of classes name in the main module, where they are looked up.
    """

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.named: dict[str, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Note what the hints of a class name."""
        if isinstance(obj, type) and obj.__module__ == "__main__":
            self.named |= _found(
                vars(obj).get("__annotations__", {}), vars(sys.modules["__main__"])
            )
        return super().reducer_override(obj)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        """Add what a function's hints name to the globals that travel with it."""
        reduced = super()._dynamic_function_reduce(func)
        _, slots = reduced[2]
        slots["__globals__"].update(_found(func.__annotations__, func.__globals__))
        return reduced


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
    return bool(not found.has_location or found.origin == module.__file__)


def _load_file(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    parent = name.rpartition(".")[0]
    while parent and parent not in sys.modules:  # an import of `a.b` looks at `a` first
        package = sys.modules[parent] = ModuleType(parent)
        package.__path__ = []
        parent = parent.rpartition(".")[0]
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _found(hints: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the hints of a class or a function name, of what there is."""
    texts = [hint for hint in hints.values() if isinstance(hint, str)]
    return {name: names[name] for name in _names_in(texts) if name in names}


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


def refused(value: Any) -> Exception | None:
    """Return why a value cannot be sent; `None` if it can."""
    try:
        pack(value)
    except Exception as error:  # noqa: BLE001 - whatever an author's object raises
        return BadReturnError(f"what it returned cannot be sent to another process: {error}")
    return None


def check_actions(actions: Any) -> None:
    """Refuse actions that cannot be sent.

    Raises:
        ActionError: One cannot be.
    """
    try:
        pack(actions)
    except Exception as error:
        raise ActionError(
            f"action: it cannot be sent to a worker process: {format_error(error)}"
        ) from error


def fail_start(
    session: Session, start: ResetResult[Any] | Exception
) -> ResetResult[Any] | Exception:
    """Return what came of a reset, as it can be sent."""
    error = refused(start)
    if error is None:
        return start
    if isinstance(start, Exception):
        return ResetFailedError(str(start))
    return session.reset_failed(error)


def fail_step(session: Session, result: StepResult[Any]) -> StepResult[Any]:
    """Return what came of a step, as it can be sent.

    If it cannot be, the episode ends here as an error, and the environment is replaced at its
    next reset.
    """
    error = refused(result)
    if error is None:
        return result
    end = EpisodeEnd("error", "environment", format_error(error))
    several = session.interface.possible_agents is not None
    failed = lost_result(result.observation, end, result, several_agents=several)
    if result.ready is not None and refused(result.ready) is None:
        return join_start(failed, result.ready, result._needs, result._ready_events)  # noqa: SLF001
    session.abandon()
    session.slot.failed = True
    return failed
