"""A vector in this thread: one environment after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from envweave.errors import EnvWeaveError
from envweave.session import LoopDriver, Session, SyncDriver
from envweave.types import ResetResult, State, StepResult, Task


@final
class SerialTransport:
    """Steps many sessions in the caller's thread, in order."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = list(sessions)
        self._drivers = [
            LoopDriver(session) if session.interface.is_async else SyncDriver(session)
            for session in self._sessions
        ]
        self.interface = self._sessions[0].interface
        self.tasks = self._sessions[0].environment.tasks

    def require(self, fits: Callable[[Any], None]) -> None:
        """Refuse, from now on, observations that don't fit the columns."""
        for session in self._sessions:
            session.fits = fits

    def reset(
        self,
        ids: Sequence[int],
        seeds: Sequence[int | None],
        tasks: Sequence[Task | str | None],
        options: Mapping[str, Any] | None,
    ) -> list[ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure stands in its place."""
        results: list[ResetResult[Any] | Exception] = []
        for i, seed, task in zip(ids, seeds, tasks, strict=True):
            try:
                results.append(self._drivers[i].reset(seed=seed, task=task, options=options))
            except EnvWeaveError as error:
                results.append(error)
        return results

    def admit(self, index: int, action: Any) -> None:
        """Refuse an action that would be refused, before anybody is stepped."""
        self._sessions[index].admit(action)

    def step(self, actions: Sequence[Any]) -> list[StepResult[Any]]:
        """Step each environment once."""
        return [driver.step(action) for driver, action in zip(self._drivers, actions, strict=True)]

    def state(self) -> list[State]:
        """Return the state of each environment."""
        return [session.state() for session in self._sessions]

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        failures = []
        for driver in self._drivers:
            try:
                driver.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed too
                failures.append(error)
        if failures:
            raise failures[0]
