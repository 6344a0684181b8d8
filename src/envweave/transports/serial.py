"""A vector in this thread: one environment after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from envweave.session import Session
from envweave.transports.sessions import check_each, standing
from envweave.types import ResetResult, State, Tasks
from envweave.vector.batch import StepBatch
from envweave.vector.choices import Wanted
from envweave.vector.columns import Columns, Layout
from envweave.vector.reset_batch import Standing
from envweave.vector.rows import SessionRows


@final
class SerialTransport:
    """Steps many sync sessions in the caller's thread, in order."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self._rows = SessionRows(sessions)
        self._sent: list[tuple[int, Any]] = []
        self.interface = sessions[0].interface

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self.sessions[0].tasks

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._rows.fix(layout, observations)

    @property
    def columns(self) -> Columns:
        """What to act on next. Nobody writes to it."""
        return self._rows.columns

    @property
    def owed(self) -> set[int]:
        """The environments that were sent for, and have not been stepped yet."""
        return {i for i, _ in self._sent}

    def check_reset(self, wanted: Wanted) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        check_each(self._rows.sessions, wanted)

    def reset(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure stands in its place."""
        return self._rows.reset(wanted)

    def standing(self, ids: Sequence[int]) -> list[Standing]:
        """Return where these environments stand."""
        self._rows.catch_up()
        return [standing(self._rows.sessions[i]) for i in ids]

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions as the authors' `step`s want them, or refuse; nothing changes."""
        return self._rows.admit(ids, actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        return self._rows.step(actions)

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Keep the actions; the environments are stepped when somebody receives."""
        self._sent.extend(zip(ids, actions, strict=True))

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:  # noqa: ARG002
        """Step those that were sent for, in order; all of them are ready then."""
        sent, self._sent = self._sent, []
        return self._rows.step_some(sent)

    def state(self) -> list[State]:
        """Return the state of each environment."""
        self._rows.catch_up()
        return [session.state() for session in self._rows.sessions]

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        failures: list[BaseException] = []
        for driver in self._rows.drivers:
            try:
                driver.close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed too
                failures.append(error)
        if failures:
            raise failures[0]
