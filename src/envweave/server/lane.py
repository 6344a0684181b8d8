"""One thread for the plain functions of some environments, and the calls that wait for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, final

logger = logging.getLogger("envweave.server")

LONG_S = 0.05
"""With a call that takes longer than this, a lane is no place for others."""


class LateError(Exception):
    """A call took longer than it may, and still runs. Never leaves the server's own modules."""


class LanesClosedError(Exception):
    """No more calls are taken. Never leaves the server's own modules."""


@final
class Pin:
    """Names the lane of one environment; it has none before its first call."""

    __slots__ = ("lane",)

    def __init__(self) -> None:
        self.lane: Lane | None = None


@final
class Callback:
    """Stands in a future's place where somebody is told at once what came of a call.

    Args:
        tell: Given what the call returned, or raised, on the loop.
    """

    __slots__ = ("_is_done", "_tell")

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._is_done = False

    def done(self) -> bool:
        """Whether somebody was told."""
        return self._is_done

    def set_result(self, outcome: Any) -> None:
        """Tell what it returned."""
        self._is_done = True
        try:
            self._tell(outcome)
        except Exception:
            logger.exception("what came of a call could not be told")

    def set_exception(self, error: BaseException) -> None:
        """Tell what it raised."""
        self.set_result(error)


@final
class Job:
    """One call on its way to a lane and back.

    Attributes:
        pin: Whose call it is.
        mates: Whose calls it is besides, if it is a visit for several.
        run: What to do, in the thread.
        future: Who waits for it, on the loop.
        left: Told what came of it if nobody waits any more.
        since: When its thread began with it; 0.0 before.
        is_late: Whether it was given up.
        steps: How many steps it is, which tells how quick these environments are.
        split: Called if it takes long: lets what has not begun go elsewhere.
    """

    __slots__ = (
        "future", "is_late", "left", "mates", "pin", "run", "since", "split", "steps", "timer",
    )  # fmt: skip

    def __init__(
        self,
        pin: Pin,
        run: Callable[[], Any],
        future: asyncio.Future[Any] | Callback,
        left: Callable[[Any, bool], None] | None,
        *,
        steps: int,
        mates: frozenset[Pin] = frozenset(),
        split: Callable[[Job], None] | None = None,
    ) -> None:
        self.split = split
        self.pin = pin
        self.run = run
        self.future = future
        self.left = left
        self.since = 0.0
        self.is_late = False
        self.steps = steps
        self.mates = mates
        self.timer: asyncio.TimerHandle | None = None

    def is_of(self, pin: Pin) -> bool:
        """Whether it runs the code of this environment."""
        return pin is self.pin or pin in self.mates


@final
class Lane:
    """One thread, and the calls that wait for it.

    Attributes:
        jobs: What waits; `None` ends the thread.
        job: What runs.
        tenants: How many environments belong here.
        is_open: Whether calls may be sent here.
    """

    def __init__(self, number: int, hand_in: Callable[..., bool]) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.job: Job | None = None
        self.tenants = 0
        self.is_open = True
        self._hand_in = hand_in
        self.thread = threading.Thread(
            target=self._work, name=f"envweave-server-{number}", daemon=True
        )
        self.thread.start()

    def _work(self) -> None:
        jobs, hand_in = self.jobs, self._hand_in
        goes_on = True
        while goes_on and (job := jobs.get()) is not None:
            outcome: Any = None
            error: BaseException | None = None
            job.since = began = monotonic()
            self.job = job
            try:
                if not job.is_late:
                    outcome = job.run()
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
                error = raised
            self.job = None
            goes_on = hand_in(self, job, outcome, error, monotonic() - began)
            del job, outcome, error  # while a thread waits it holds on to nothing

    def is_held_up(self, now: float) -> bool:
        """Whether a call here has taken so long that nobody should wait behind it."""
        job = self.job
        return job is not None and now - job.since > LONG_S

    def retire(self) -> None:
        """Let the thread end when it is done with what waits."""
        self.is_open = False
        self.jobs.put(None)
