"""Pickles of definitions and values, between a process and its own workers.

Both ends run the same code for the same user, so values are pickled: each arrives as the very
type that it was. The private part of a task is sent to a worker, never back.

What a module defines is pickled as an import path. What a script, a notebook or a function
defines is pickled by value, with everything that its type hints name.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, final

import cloudpickle

from envweave.codec import Spec
from envweave.codec.containers import DataclassSpec, PydanticSpec
from envweave.environment import Interface
from envweave.errors import (
    ActionError,
    BadReturnError,
    DefinitionError,
    ResetFailedError,
    format_error,
)
from envweave.registry import EnvSpec, MakeOptions
from envweave.session import Session
from envweave.session.episodes import lost_result
from envweave.session.results import join_start
from envweave.types import EpisodeEnd, ResetResult, StepResult
from envweave.types.tasks import PICKLES_WITHHOLD


def pack(value: Any) -> bytes:
    """Pickle a value: quickly where its classes can be imported, else by value."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - a local class, a lambda; if it is neither, this raises again
        return pack_by_value(value)


def pack_by_value(value: Any) -> bytes:
    """Pickle a value, with everything that the other process may not be able to import."""
    packed: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return packed


def pack_reply(value: Any, pack: Callable[[Any], bytes] = pack) -> bytes:
    """Pickle what a worker sends to its parent: without the private parts of tasks."""
    token = PICKLES_WITHHOLD.set(True)
    try:
        return pack(value)
    finally:
        PICKLES_WITHHOLD.reset(token)


def pack_failure(error: BaseException) -> bytes:
    """Pickle what was raised in a worker; as its text, if it cannot be pickled itself."""
    try:
        packed = pack_reply(("failed", error))
        pickle.loads(packed)  # noqa: S301 - many exceptions can be pickled, and not unpickled
    except Exception:  # noqa: BLE001
        return pack_reply(("failed", RuntimeError(format_error(error))))
    return packed


# Definitions


def pack_definition(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, *rest: Any
) -> bytes:
    """Pickle a definition.

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


def travels_by_value(spec: EnvSpec) -> bool:
    """Whether a definition is sent as code, since no module that can be imported defines it."""
    factory = spec.factory
    if isinstance(factory, str):
        return False
    local = "<locals>" in getattr(factory, "__qualname__", "<locals>")
    modules = list(_modules_of([factory]))
    return local or any(one.__name__ == "__main__" or not _can_be_imported(one) for one in modules)


def load_definition(packed: bytes | bytearray) -> tuple[Any, ...]:
    """Return a definition that was pickled, in the process that it was sent to.

    Raises:
        DefinitionError: It needs a module that is not found here.
    """
    try:
        files, names, parts = pickle.loads(packed)  # noqa: S301 - from our own parent
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
    """Pickle a value; also return what the hints of its classes name in the main module."""
    with io.BytesIO() as file:
        pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.dump(value)
        return file.getvalue(), pickler.named


@final
class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also pickles what type hints name, which code does not refer to.

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
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        found = next((spec for spec in specs if spec is not None), None)
        if found is None:
            return False
        path = found.submodule_search_locations
    return bool(not found.has_location or found.origin == module.__file__)


def _load_file(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python module")
    parent = name.rpartition(".")[0]
    while parent and parent not in sys.modules:  # an import of `a.b` looks at `a` first
        package = sys.modules[parent] = ModuleType(parent)
        package.__path__ = []
        parent = parent.rpartition(".")[0]
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _found(hints: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the names in the hints of a class or a function that are defined."""
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


def bind_main_classes(interface: Interface) -> None:
    """Let pickles refer to the classes of the parent's main module by name, as the parent does.

    They were sent here by value. Named `__main__.Action`, as in the parent, they need not be
    part of every message.
    """
    main = sys.modules["__main__"]
    for root in (interface.action_spec, interface.observation_spec):
        for spec in specs_in(root):
            if isinstance(spec, DataclassSpec | PydanticSpec) and spec.cls.__module__ == "__main__":
                setattr(main, spec.cls.__qualname__, spec.cls)


def specs_in(root: Spec) -> Iterator[Spec]:
    """Iterate over a spec and all specs inside it."""
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Spec):
            yield value
            pending.extend(vars(value).values() if hasattr(value, "__dict__") else _slots(value))
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)


def _slots(spec: Spec) -> list[Any]:
    names = [name for cls in type(spec).__mro__ for name in getattr(cls, "__slots__", ())]
    return [getattr(spec, name, None) for name in names]


# Values that cannot be pickled


def pickle_error(value: Any) -> Exception | None:
    """Return why a value cannot be sent; `None` if it can."""
    try:
        pack(value)
    except Exception as error:  # noqa: BLE001 - whatever an author's object raises
        return BadReturnError(f"what it returned cannot be sent to another process: {error}")
    return None


def check_actions(actions: Any) -> None:
    """Refuse actions that cannot be sent.

    Raises:
        ActionError: One of them cannot be.
    """
    try:
        pack(actions)
    except Exception as error:
        raise unpicklable_action(error) from error


def unpicklable_action(error: Exception) -> ActionError:
    """Return the refusal of an action whose pickling raised an error."""
    return ActionError(f"action: it cannot be sent to a worker process: {format_error(error)}")


def fail_start(
    session: Session, start: ResetResult[Any] | Exception
) -> ResetResult[Any] | Exception:
    """Return the outcome of a reset, or a failure in its place if it cannot be sent."""
    error = pickle_error(start)
    if error is None:
        return start
    if isinstance(start, Exception):
        return ResetFailedError(str(start))
    return session.reset_failed(error)


def fail_step(session: Session, result: StepResult[Any]) -> StepResult[Any]:
    """Return the result of a step, or a failure in its place if it cannot be sent.

    In that case the episode ends here as an error, and the environment is replaced at its next
    reset.
    """
    error = pickle_error(result)
    if error is None:
        return result
    end = EpisodeEnd("error", "environment", format_error(error))
    several = session.interface.possible_agents is not None
    failed = lost_result(result.observation, end, result, several_agents=several)
    if result.ready is not None and pickle_error(result.ready) is None:
        return join_start(failed, result.ready, result._needs, result._ready_events)  # noqa: SLF001
    session.abandon()
    session.slot.failed = True
    return failed
