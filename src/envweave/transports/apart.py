"""Vectors whose environments are stepped apart, and come back one by one.

`ApartTransport` keeps the books; a `Crew` runs the calls: on an event loop (`loop.py`), or in
threads (`threads.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

from envweave.errors import EnvWeaveError
from envweave.session import Session
from envweave.types import ResetResult, State, StepResult, Task
from envweave.vector.batch import StepBatch, batch_of
from envweave.vector.columns import Columns, Layout, Listed, replaced
from envweave.vector.rows import admit_each

Outcome = StepResult[Any] | Exception


class Crew(Protocol):
    """Runs the calls of many environments at once, each environment's one after the other."""

    def reset(self, index: int, keywords: Mapping[str, Any]) -> None:
        """Let one environment begin an episode; its outcome comes by `collect`."""

    def step(self, index: int, action: Any) -> None:
        """Let one environment take a step; its outcome comes by `collect`."""

    def collect(self, count: int, timeout_s: float | None) -> list[tuple[int, Outcome]]:
        """Wait for `count` outcomes, and return all there are, the oldest first.

        After `timeout_s` seconds fewer are returned, or none.
        """
        ...

    def close(self) -> None:
        """Close every environment, and leave nothing behind."""


@final
class ApartTransport:
    """Steps many sessions at once; a slow one holds up nobody but a barrier."""

    goes_on = True

    def __init__(self, sessions: Sequence[Session], crew: Callable[[list[Session]], Crew]) -> None:
        self._sessions = list(sessions)
        self._crew = crew(self._sessions)
        self._layout: Layout = Listed()
        self.columns: Columns = None
        self.interface = self._sessions[0].interface
        self.tasks = self._sessions[0].environment.tasks

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._layout = layout
        self.columns = layout.gather(observations)
        for session in self._sessions:
            session.fits = layout.check

    def reset(
        self,
        ids: Sequence[int],
        seeds: Sequence[int | None],
        tasks: Sequence[Task | str | None],
        options: Mapping[str, Any] | None,
    ) -> list[ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure stands in its place."""
        for i, seed, task in zip(ids, seeds, tasks, strict=True):
            self._crew.reset(i, {"seed": seed, "task": task, "options": options})
        outcomes = dict(self._crew.collect(len(ids), None))
        results: list[ResetResult[Any] | Exception] = []
        started: dict[int, Any] = {}
        for i in ids:
            outcome = outcomes[i]
            if isinstance(outcome, ResetResult):
                started[i] = outcome.observation
                results.append(outcome)
            elif isinstance(outcome, EnvWeaveError):
                results.append(outcome)
            else:
                assert isinstance(outcome, Exception)
                raise outcome
        if self.columns is not None and started:
            self.columns = replaced(self.columns, started, self._layout)
        return results

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions as the authors' `step`s want them, or refuse; nothing changes."""
        return admit_each([self._sessions[i] for i in ids], actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        ids = range(len(self._sessions))
        self.send(ids, actions)
        return self._book(sorted(self._collect(len(ids), None)))

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Let these environments take a step each."""
        for i, action in zip(ids, actions, strict=True):
            self._crew.step(i, action)

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        return self._book(self._collect(min_ready, timeout_s))

    def _collect(self, count: int, timeout_s: float | None) -> list[tuple[int, StepResult[Any]]]:
        done: list[tuple[int, StepResult[Any]]] = []
        for i, outcome in self._crew.collect(count, timeout_s):
            if isinstance(outcome, Exception):
                raise outcome
            done.append((i, outcome))
        return done

    def _book(self, done: Sequence[tuple[int, StepResult[Any]]]) -> StepBatch:
        ids = [i for i, _ in done]
        self.columns = replaced(self.columns, {i: r.current for i, r in done}, self._layout)
        return batch_of([result for _, result in done], ids, self._layout)

    def state(self) -> list[State]:
        """Return the state of each environment."""
        return [session.state() for session in self._sessions]

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        self._crew.close()
