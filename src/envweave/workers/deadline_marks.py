"""What is done to environments that run in a worker process."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Generator, Iterator
from types import CoroutineType
from typing import Any, final

from envweave.codec import Spec
from envweave.codec.containers import DataclassSpec, PydanticSpec
from envweave.environment import Environment, Interface
from envweave.types import ToolResult
from envweave.vector.process.shared_memory import TurnSlot, TurnTable
from envweave.wrappers import Wrapper


@final
class Marked(Wrapper):
    """Notes on the board when the author's code begins and ends, for who watches the deadline."""

    def __init__(
        self, environment: Environment, board: TurnTable, turn: TurnSlot, row: int
    ) -> None:
        super().__init__(environment)
        self._board, self._turn, self._row = board, turn, row

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode inside."""
        return self._run(lambda: self.environment.reset(**kwargs))

    def step(self, action: Any) -> Any:
        """Step inside."""
        return self._run(lambda: self.environment.step(action))

    def answer(self, result: ToolResult) -> Any:
        """Pass the answer to a tool call on."""
        return self._run(lambda: self.environment.answer(result))

    def _run(self, code: Callable[[], Any]) -> Any:
        self._board.begin(self._turn, self._row)
        try:
            outcome = code()
        finally:
            self._board.end(self._turn)
        return self._resume(outcome) if inspect.iscoroutine(outcome) else outcome

    @types.coroutine
    def _resume(self, coroutine: CoroutineType[Any, Any, Any]) -> Generator[Any, None, Any]:
        """Run a coroutine; what is marked is each stretch in which it holds the event loop."""
        error: BaseException | None = None
        while True:
            self._board.begin(self._turn, self._row)
            try:
                waits = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                self._board.end(self._turn)
            error = None
            try:
                yield waits
            except BaseException as thrown:  # noqa: BLE001 - a cancellation, for the coroutine
                error = thrown


def bind_main_classes(interface: Interface) -> None:
    """Let messages name the trainer's own classes, of a script or a notebook, as it does.

    They came here by value. Named `__main__.Action`, as in the trainer, they need not travel
    with each message.
    """
    main = sys.modules["__main__"]
    for spec in (interface.action_spec, interface.observation_spec):
        for one in specs_in(spec):
            if isinstance(one, DataclassSpec | PydanticSpec) and one.cls.__module__ == "__main__":
                setattr(main, one.cls.__qualname__, one.cls)


def specs_in(spec: Spec) -> Iterator[Spec]:
    """Go through a spec and all those inside it."""
    waiting: list[Any] = [spec]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Spec):
            yield one
            waiting.extend(vars(one).values() if hasattr(one, "__dict__") else _slots(one))
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)


def _slots(spec: Spec) -> list[Any]:
    names = [name for cls in type(spec).__mro__ for name in getattr(cls, "__slots__", ())]
    return [getattr(spec, name, None) for name in names]
