"""The short way of steps: no task for any of them, and those of a frame are taken together.

It costs a small part of the ordinary way: few visits to threads, and replies as columns. Whatever
is not the next step of a session without a deadline goes the ordinary way.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, final

from envweave.errors import ClosedError, ConnectionLostError
from envweave.server.dispatch import CallOutcome, ProcessExitAttemptError, take_step
from envweave.server.runtime.runners import ThreadedRunner
from envweave.server.runtime.thread_pool import CallTimeoutError, PoolClosedError, ThreadJob
from envweave.server.session import ServedSession
from envweave.server.sessions import SessionTable
from envweave.types import StepResult
from envweave.wire.columns import columns_of
from envweave.wire.messages import Call, Reply, Stepped, Steps

Tell = Callable[[Sequence[int], Sequence[Any]], None]
"""Given the places of some steps, and what each led to: a `StepResult` if it was an ordinary one,
else what travels, or an error."""

_losing: set[asyncio.Task[None]] = set()  # so that nobody collects what still runs


@final
class StepBatchJob:
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
            elif isinstance(one, CallOutcome):
                came[i] = runners[i].end_step(one)
            elif isinstance(one, ProcessExitAttemptError | CallTimeoutError):
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

    def _split(self, job: ThreadJob) -> None:
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
            alone = StepBatchJob(
                (self._runners[i],), (self._actions[i],), partial(self._tell_alone, i)
            )
            self._told.add(i)
            alone.start()

    def _tell_alone(self, i: int, _: Sequence[int], outcomes: Sequence[Any]) -> None:
        self._tell((i,), outcomes)

    def _left(self, _: Any, is_late: bool) -> None:  # noqa: FBT001 - a job's end
        """Take note of a step that was given up, and has come to its end."""
        at = self._at
        self._runners[at].left(self._drivers[at], self._pins[at], None, is_late)


@final
class StepBatcher:
    """Carries out steps without a task for each of them."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._working: set[asyncio.Task[None]] = set()

    def start(
        self, calls: Sequence[Call], connection: object, tell: Callable[[Reply], None]
    ) -> list[Call]:
        """Begin those calls that are steps which can go this way; return the others.

        Each reply is told as soon as it is there.
        """
        taken = _Batch()
        others: list[Call] = []
        find = self._table.get
        for call in calls:
            params = call.params
            is_plain = call.method == "step" and len(params) == 1 and "action" in params
            session = find(call.session) if is_plain else None
            if session is None or not taken.add(session, call.id, connection, params["action"]):
                others.append(call)
        sessions, began_s = taken.sessions, time.monotonic()

        def told(places: Sequence[int], outcomes: Sequence[Any]) -> None:
            some = [sessions[i] for i in places]
            for session, one in zip(some, self._book(some, outcomes, began_s), strict=True):
                tell(session.whole(session.last_number, one))

        taken.go(told)
        return others

    def step(self, frame: Steps, connection: object, tell: Callable[[Stepped], None]) -> None:
        """Take the steps of a frame, and tell what came of them when all are done."""
        taken = _Batch()
        others: list[Coroutine[Any, Any, Reply]] = []
        find = self._table.get
        for i, (name, number) in enumerate(zip(frame.sessions, frame.numbers, strict=True)):
            session = find(name)
            if session is None or not taken.add(session, number, connection, frame.actions[i]):
                others.append(self._table.call(frame.call(i), connection))
        sessions, began_s = taken.sessions, time.monotonic()
        came: list[Any] = [None] * len(sessions)
        left = len(sessions) + len(others)
        rest: list[Reply] = []

        def told(places: Sequence[int], outcomes: Sequence[Any]) -> None:
            nonlocal left
            if len(places) == len(sessions) == left:  # all at once, as usual
                tell(_columns(taken, self._book(sessions, outcomes, began_s), rest))
                return
            booked = self._book([sessions[i] for i in places], outcomes, began_s)
            for i, one in zip(places, booked, strict=True):
                came[i] = one
            left -= len(places)
            if not left:
                tell(_columns(taken, came, rest))

        async def carry_out() -> None:
            nonlocal left
            rest.extend(await asyncio.gather(*others))
            left -= len(others)
            if not left:
                tell(_columns(taken, came, rest))

        if others or not sessions:
            task = asyncio.ensure_future(carry_out())
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        taken.go(told)

    def _book(
        self, sessions: Sequence[ServedSession], outcomes: Sequence[Any], began_s: float
    ) -> Sequence[Any]:
        """Let sessions keep what came of their steps; what was not ordinary becomes a reply."""
        now_s = time.monotonic()
        booked = list(outcomes)
        codes = {"ok": 0}
        for i, session in enumerate(sessions):
            one, code = booked[i], "ok"
            if type(one) is not StepResult:
                one = booked[i] = self._reply(session, one)
                code = "ok" if one.fault is None else one.fault.code
            codes[code] = codes.get(code, 0) + 1
            session.end(one, now_s)
            if session.is_unwanted:
                self._table.close_unwanted(session)
        for watcher in self._table.watchers:
            for code, count in codes.items():
                watcher.called("step", code, now_s - began_s, count)
        return booked

    def _reply(self, session: ServedSession, outcome: Any) -> Reply:
        reply = Reply(id=session.last_number, session=session.id)
        if isinstance(outcome, BaseException):
            reply.fault = self._table.told("step", outcome)
        else:
            reply.result = outcome
        return reply


@final
class _Batch:
    """Steps that go the short way.

    Attributes:
        sessions: Whose they are.
        numbers: Those of the calls, each in its session.
    """

    def __init__(self) -> None:
        self.sessions: list[ServedSession] = []
        self.numbers: list[int] = []
        self._runners: list[ThreadedRunner] = []
        self._actions: list[Any] = []

    def add(self, session: ServedSession, number: int, connection: object, action: Any) -> bool:
        """Begin a step, if it is a session's next call and its thread is known; else say so."""
        runner = session.runner
        if type(runner) is not ThreadedRunner or runner.lane is None:
            return False
        if not session.begin_step(number, connection):
            return False
        self.sessions.append(session)
        self.numbers.append(number)
        self._runners.append(runner)
        self._actions.append(action)
        return True

    def go(self, tell: Tell) -> None:
        """Visit the threads: once for all that are quick and share one, else for each."""
        if not self.sessions:
            return
        lanes = [runner.pin.lane for runner in self._runners]
        count, is_quick = len(lanes), self._runners[0].lanes.is_quick
        if count == 1 or (is_quick and lanes.count(lanes[0]) == count):
            self._visit(range(count), tell)
            return
        groups: dict[Any, list[int]] = {}
        for i, lane in enumerate(lanes):
            groups.setdefault(lane if is_quick else i, []).append(i)
        for places in groups.values():
            self._visit(places, tell)

    def _visit(self, places: Sequence[int], tell: Tell) -> None:
        def told(some: Sequence[int], outcomes: Sequence[Any]) -> None:
            tell([places[i] for i in some], outcomes)

        runners, actions, is_all = self._runners, self._actions, len(places) == len(self._runners)
        if not is_all:
            runners, actions = [runners[i] for i in places], [actions[i] for i in places]
        try:
            StepBatchJob(runners, actions, tell if is_all else told).start()
        except (PoolClosedError, ClosedError):
            tell(places, [ConnectionLostError("The server is stopping.")] * len(places))


def _columns(taken: _Batch, outcomes: Sequence[Any], rest: list[Reply]) -> Stepped:
    """Return the answer to a frame: ordinary steps by column, and the replies to the others."""
    names = [session.id for session in taken.sessions]
    numbers, results = taken.numbers, outcomes
    if list(map(type, outcomes)).count(StepResult) < len(outcomes):
        places = [i for i, one in enumerate(outcomes) if type(one) is StepResult]
        names, numbers = [names[i] for i in places], [numbers[i] for i in places]
        results = [outcomes[i] for i in places]
        rest = [*rest, *(one for one in outcomes if type(one) is not StepResult)]
    rewards = [result.reward for result in results]
    infos = [result.info for result in results]
    tasks = [result.task_id for result in results]
    observations, is_implied = columns_of([one.observation for one in results], rewards, infos)
    return Stepped(
        sessions=names,
        numbers=numbers,
        observations=observations,
        rewards=rewards,
        episodes=[result.episode_id for result in results],
        indices=[result.step_index for result in results],
        is_implied=is_implied,
        infos=[(i, info) for i, info in enumerate(infos) if info] if any(infos) else [],
        tasks=tasks if any(tasks) else [],
        rest=rest,
    )
