"""Vectors whose environments are stepped concurrently, and return one by one.

`ConcurrentTransport` keeps track of the calls; a `CallExecutor` runs them: on an event loop
(`event_loop.py`) or in threads (`threads.py`). Every call has a number. A caller that is
interrupted while it waits for a reset has abandoned those calls, and their outcomes are dropped by
number; steps are kept until they are received.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from envweave.errors import ActionError, EnvWeaveError
from envweave.session import Session
from envweave.types import ResetResult, State, Tasks
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch, batch_of
from envweave.vector.columns import Columns, Layout, Listed, replaced
from envweave.vector.serial import admit_each, check_each, first_observations, row_status

Outcome: TypeAlias = Any
"""A result, an author's state, or what was raised instead."""


class QueuedCall(NamedTuple):
    """One call on one environment.

    Attributes:
        number: The number of the call, counted over the vector.
        env_index: The environment that it is for.
        method: `"reset"`, `"step"` or `"state"`.
        args: The positional arguments of the method.
        keywords: Its keyword arguments.
    """

    number: int
    env_index: int
    method: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}


class CallExecutor(Protocol):
    """Runs the calls of many environments at once, each environment's one after the other.

    Every call has an outcome, even if it raises a `BaseException`.
    """

    done: dict[int, Outcome]
    """The outcomes that were not taken yet, by number of call, the oldest first."""

    def run(self, call: QueuedCall) -> None:
        """Schedule one call; its outcome is put into `done`."""

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Return when `done` holds `count` outcomes, or after `timeout_s` seconds."""

    def abandon(self, numbers: Collection[int]) -> None:
        """Stop these calls where possible; their outcomes are not needed."""

    def close(self) -> None:
        """Close every environment, and leave nothing behind. May be called twice."""


@final
class ConcurrentTransport:
    """Steps many sessions at once; a slow one delays only a call that waits for all."""

    def __init__(
        self, sessions: Sequence[Session], make_executor: Callable[[list[Session]], CallExecutor]
    ) -> None:
        self.sessions = list(sessions)
        self._executor = make_executor(self.sessions)
        self._numbers = itertools.count()
        self._steps: dict[
            int, int
        ] = {}  # the environment of each step not received yet, by number of call
        self._layout: Layout = Listed()
        self.columns: Columns = None
        self.interface = self.sessions[0].interface

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self.sessions[0].tasks

    @property
    def receivable(self) -> set[int]:
        """The environments whose step was not received yet."""
        return set(self._steps.values())

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._layout = layout
        self.columns = layout.gather(observations)
        for session in self.sessions:
            session.check_observation = layout.check

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        check_each(self.sessions, resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure takes the place of its result."""
        results = self._call_all(
            QueuedCall(next(self._numbers), i, "reset", (), keywords)
            for i, keywords in resets.items()
        )
        outcomes: dict[int, ResetResult[Any] | Exception] = dict(zip(resets, results, strict=True))
        started = first_observations(outcomes)
        if self.columns is not None and started:
            self.columns = replaced(self.columns, started, self._layout)
        return outcomes

    def _call_all(self, calls: Iterable[QueuedCall]) -> list[Outcome]:
        """Run calls, wait for all of them, and return their outcomes."""
        env_indices: dict[int, int] = {}
        try:
            for call in calls:
                env_indices[call.number] = call.env_index
                self._executor.run(call)
            self._wait(env_indices, len(env_indices), None)
        except BaseException:
            self._executor.abandon(env_indices)
            raise
        outcomes = [self._executor.done.pop(number) for number in env_indices]
        for i, outcome in zip(env_indices.values(), outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EnvWeaveError):
                raise _named(i, outcome)
        return outcomes

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return [row_status(self.sessions[i]) for i in ids]

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions in the form for the authors' `step`, or refuse; nothing changes."""
        return admit_each([self.sessions[i] for i in ids], actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        self.send(range(len(self.sessions)), actions)
        self._wait(self._steps, len(self._steps), None)
        return self._take(sorted(self._steps))

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Have these environments take a step each."""
        for i, action in zip(ids, actions, strict=True):
            call = QueuedCall(next(self._numbers), i, "step", (action,))
            self._executor.run(call)  # first: every step that is tracked will have an outcome
            self._steps[call.number] = i

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        return self._take(self._wait(self._steps, min_ready, timeout_s))

    def _wait(self, numbers: Container[int], count: int, timeout_s: float | None) -> list[int]:
        """Wait until `count` of these calls are done; return those that are."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while len(ready := self._finished(numbers)) < count:
            left = None if timeout_s is None else max(0.0, deadline - time.monotonic())
            self._executor.wait(count, left)
            if time.monotonic() >= deadline:
                return self._finished(numbers)
        return ready

    def _finished(self, numbers: Container[int]) -> list[int]:
        """Return which of these calls are done, and drop the outcomes of abandoned ones."""
        ready = []
        for number in list(self._executor.done):
            if number in numbers:
                ready.append(number)
            elif number not in self._steps:
                del self._executor.done[number]
        return ready

    def _take(self, numbers: Sequence[int]) -> StepBatch:
        """Make a batch of steps that are done, and forget them."""
        done = self._executor.done
        ids, results = [], []
        for number in numbers:
            outcome, session = done[number], self.sessions[self._steps[number]]
            if isinstance(outcome, ActionError):
                outcome = session.refused(outcome)
            elif isinstance(outcome, BaseException):
                # The others stay, for the next recv().
                raise _named(self._steps.pop(number), outcome)
            elif outcome.ready is None:
                session.info = outcome.info
            ids.append(self._steps[number])
            results.append(outcome)
        shown = {i: result.current for i, result in zip(ids, results, strict=True)}
        self.columns = replaced(self.columns, shown, self._layout)
        batch = batch_of(results, ids, self._layout)
        for number in numbers:
            del self._steps[number], done[number]
        return batch

    def state(self) -> list[State]:
        """Return the state of each environment."""
        everyone = range(len(self.sessions))
        states = self._call_all([QueuedCall(next(self._numbers), i, "state") for i in everyone])
        for outcome in states:
            if isinstance(outcome, EnvWeaveError):
                raise outcome
        return states

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        self._executor.close()


def _named(index: int, error: BaseException) -> BaseException:
    error.add_note(f"Raised in environment {index} of the vector.")
    return error
