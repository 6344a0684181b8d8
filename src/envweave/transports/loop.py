"""A vector of async environments: all of them at once, on one private event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar, final

from envweave.errors import EnvWeaveError
from envweave.session import AsyncDriver, PrivateLoop, Session
from envweave.types import ResetResult, State, Task
from envweave.vector import StepBatch
from envweave.vector.batch import batch_of
from envweave.vector.columns import Columns, Layout, Listed, replaced
from envweave.vector.rows import admit_each

T = TypeVar("T")


@final
class LoopTransport:
    """Steps many sessions concurrently; a slow one holds up nobody but the barrier."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = list(sessions)
        self._drivers = [AsyncDriver(session) for session in self._sessions]
        self._loop = PrivateLoop()
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
        calls = [
            self._drivers[i].reset(seed=seed, task=task, options=options)
            for i, seed, task in zip(ids, seeds, tasks, strict=True)
        ]
        outcomes = self._loop.run(_each(calls))
        results: list[ResetResult[Any] | Exception] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, EnvWeaveError):
                raise outcome
            results.append(outcome)
        started = {
            i: result.observation
            for i, result in zip(ids, results, strict=True)
            if not isinstance(result, Exception)
        }
        if self.columns is not None and started:
            self.columns = replaced(self.columns, started, self._layout)
        return results

    def admit(self, actions: Sequence[Any]) -> list[Any]:
        """Return the actions as the authors' `step`s want them, or refuse; nothing changes."""
        return admit_each(self._sessions, actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        calls = [d.step(action) for d, action in zip(self._drivers, actions, strict=True)]
        results = self._loop.run(_all(calls))
        batch = batch_of(results, range(len(results)), self._layout)
        self.columns = batch.shown_next
        return batch

    def state(self) -> list[State]:
        """Return the state of each environment."""
        return [session.state() for session in self._sessions]

    def close(self) -> None:
        """Close every environment and the loop; the first failure is raised when all are."""
        if self._loop.is_closed:
            return
        try:
            outcomes = self._loop.run(_each([driver.close() for driver in self._drivers]))
        finally:
            self._loop.close()
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]


async def _each(calls: list[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def _all(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    return await asyncio.gather(*calls)
