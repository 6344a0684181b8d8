"""Steps of several environments in one visit to their thread: one wake-up instead of many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from envweave.server.lane import Job, LateError
from envweave.server.performing import EndedItselfError, Performed, take_step
from envweave.server.threaded import ThreadedRunner
from envweave.types import StepResult

Tell = Callable[[Sequence[int], Sequence[Any]], None]
"""Given the places of some steps, and what each led to: a `StepResult` if it was an ordinary one,
else what travels, or an error."""

_losing: set[asyncio.Task[None]] = set()  # so that nobody collects what still runs


@final
class Visit:
    """Steps of sessions that share a lane, without a deadline, taken one after the other.

    Should one of them take long, those that have not begun go elsewhere, and those that are done
    are told.

    Args:
        runners: Whose steps they are; they share a lane.
        actions: What each is given.
        tell: Told on the loop what came of them, of each once: as a rule of all at once.
    """

    def __init__(
        self, runners: Sequence[ThreadedRunner], actions: Sequence[Any], tell: Tell
    ) -> None:
        self._runners = runners
        self._actions = actions
        self._tell = tell
        self._drivers = [runner.stepper for runner in runners]
        self._pins = [runner.pin for runner in runners]
        self._waiting = deque(range(len(runners)))
        self._at = 0  # which of them runs
        self._came: list[Any] = [None] * len(runners)
        self._told: set[int] = set()  # if there was a need to tell of some before the others

    def start(self) -> None:
        """Go there.

        Raises:
            LanesClosedError: No more calls are taken.
        """
        pins = self._pins
        self._runners[0].lanes.start(
            pins[0],
            self._run,
            self._end,
            self._left,
            steps=len(pins),
            mates=frozenset(pins[1:]),
            split=self._split,
        )

    def _run(self) -> None:
        """In the thread."""
        waiting, came, drivers, actions = self._waiting, self._came, self._drivers, self._actions
        while waiting:
            try:
                self._at = i = waiting.popleft()
            except IndexError:  # it went elsewhere in this very moment
                return
            came[i] = take_step(drivers[i], actions[i])

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._came = [error if one is None else one for one in self._came]
        if self._told:
            self._settle([i for i in range(len(self._came)) if self._is_new(i)])
        else:
            self._settle(range(len(self._came)))

    def _is_new(self, i: int) -> bool:
        return self._came[i] is not None and i not in self._told

    def _settle(self, places: Sequence[int]) -> None:
        """Take what came of some steps, and tell; whose environment is lost takes longer."""
        runners, came = self._runners, self._came
        lost: list[int] = []
        for i in places:
            one = came[i]
            if type(one) is StepResult:
                runners[i].seen = one
            elif isinstance(one, Performed):
                came[i] = runners[i].end_step(one)
            elif isinstance(one, EndedItselfError | LateError):
                lost.append(i)
        self._told.update(places)
        if lost:
            places = [i for i in places if i not in lost]
            task = asyncio.ensure_future(self._lose(lost))
            _losing.add(task)
            task.add_done_callback(_losing.discard)
        if len(places) == len(came):
            self._tell(places, came)
        elif places:
            self._tell(places, [came[i] for i in places])

    async def _lose(self, lost: Sequence[int]) -> None:
        for i in lost:
            self._tell((i,), (await self._runners[i].lose_step(self._came[i]),))

    def _split(self, job: Job) -> None:
        """Let who waits behind the one that runs go elsewhere."""
        rest: list[int] = []
        while self._waiting:
            try:
                rest.append(self._waiting.pop())
            except IndexError:  # the thread took it in this very moment
                break
        at = self._at
        job.pin, job.mates = self._pins[at], frozenset()
        job.steps -= len(rest)
        self._settle([i for i in range(len(self._came)) if i != at and self._is_new(i)])
        for i in reversed(rest):
            alone = Visit((self._runners[i],), (self._actions[i],), partial(self._tell_alone, i))
            self._told.add(i)
            alone.start()

    def _tell_alone(self, i: int, _: Sequence[int], outcomes: Sequence[Any]) -> None:
        self._tell((i,), outcomes)

    def _left(self, _: Any, is_late: bool) -> None:  # noqa: FBT001 - a job's end
        """Take note of a step that was given up, and has come to its end."""
        at = self._at
        self._runners[at].left(self._drivers[at], self._pins[at], None, is_late)
