"""The fast path of steps: no task per step, and the steps of a frame are taken in batches.

It costs a small part of the slow path: few jobs in threads, and replies as columns. It takes only
the next step of a session without a deadline; every other call goes the slow path.
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

Deliver = Callable[[Sequence[int], Sequence[Any]], None]
"""Called with the indices of some steps and their outcomes: a `StepResult` for an ordinary step,
else the encoded result or an error."""

_recovering: set[asyncio.Task[None]] = set()  # keeps running tasks from being garbage-collected


@final
class StepBatchJob:
    """Steps of sessions that share a thread, without a deadline, taken one after the other.

    If one of them takes long, those that have not begun move to other threads, and those that are
    done are delivered.

    Args:
        runners: The runners of the sessions; they share a thread.
        actions: The action of each.
        deliver: Called on the loop with the outcome of each step once, usually with all at once.
    """

    def __init__(
        self, runners: Sequence[ThreadedRunner], actions: Sequence[Any], deliver: Deliver
    ) -> None:
        self._runners = runners
        self._actions = actions
        self._deliver = deliver
        self._drivers = [runner.driver for runner in runners]
        self._affinities = [runner.affinity for runner in runners]
        self._waiting = deque(range(len(runners)))
        self._current = 0  # index of the step that runs
        self._outcomes: list[Any] = [None] * len(runners)
        self._delivered: set[int] = set()  # steps whose outcomes were delivered before the others

    def start(self) -> None:
        """Submit the steps to their thread.

        Raises:
            PoolClosedError: The pool is closed.
        """
        affinities = self._affinities
        self._runners[0].pool.start(
            affinities[0],
            self._run,
            self._end,
            self._on_abandoned,
            steps=len(affinities),
            batch_members=frozenset(affinities[1:]),
            split=self._split,
        )

    def _run(self) -> None:
        """Take the steps. Runs in the thread."""
        waiting, outcomes = self._waiting, self._outcomes
        drivers, actions = self._drivers, self._actions
        while waiting:
            try:
                self._current = i = waiting.popleft()
            except IndexError:  # it was moved to another thread just now
                return
            outcomes[i] = take_step(drivers[i], actions[i])

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._outcomes = [error if one is None else one for one in self._outcomes]
        if self._delivered:
            self._finish([i for i in range(len(self._outcomes)) if self._is_new(i)])
        else:
            self._finish(range(len(self._outcomes)))

    def _is_new(self, i: int) -> bool:
        return self._outcomes[i] is not None and i not in self._delivered

    def _finish(self, indices: Sequence[int]) -> None:
        """Record and deliver outcomes; a lost environment is handled in a task."""
        runners, outcomes = self._runners, self._outcomes
        lost: list[int] = []
        for i in indices:
            one = outcomes[i]
            if type(one) is StepResult:
                runners[i].last_result = one
            elif isinstance(one, CallOutcome):
                outcomes[i] = runners[i].end_step(one)
            elif isinstance(one, ProcessExitAttemptError | CallTimeoutError):
                lost.append(i)
        self._delivered.update(indices)
        if lost:
            indices = [i for i in indices if i not in lost]
            task = asyncio.ensure_future(self._lose(lost))
            _recovering.add(task)
            task.add_done_callback(_recovering.discard)
        if len(indices) == len(outcomes):
            self._deliver(indices, outcomes)
        elif indices:
            self._deliver(indices, [outcomes[i] for i in indices])

    async def _lose(self, lost: Sequence[int]) -> None:
        for i in lost:
            self._deliver((i,), (await self._runners[i].lose_step(self._outcomes[i]),))

    def _split(self, job: ThreadJob) -> None:
        """Move the steps behind the running one to other threads."""
        rest: list[int] = []
        while self._waiting:
            try:
                rest.append(self._waiting.pop())
            except IndexError:  # the thread took it just now
                break
        at = self._current
        job.affinity, job.batch_members = self._affinities[at], frozenset()
        job.steps -= len(rest)
        self._finish([i for i in range(len(self._outcomes)) if i != at and self._is_new(i)])
        for i in reversed(rest):
            alone = StepBatchJob(
                (self._runners[i],), (self._actions[i],), partial(self._deliver_single, i)
            )
            self._delivered.add(i)
            alone.start()

    def _deliver_single(self, i: int, _: Sequence[int], outcomes: Sequence[Any]) -> None:
        self._deliver((i,), outcomes)

    def _on_abandoned(self, _: Any, is_late: bool) -> None:  # noqa: FBT001 - a job's end
        """Handle the end of a step that was abandoned."""
        at = self._current
        self._runners[at].on_abandoned(self._drivers[at], self._affinities[at], None, is_late)


@final
class StepBatcher:
    """Carries out steps without a task for each of them."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._working: set[asyncio.Task[None]] = set()

    def start(
        self, calls: Sequence[Call], connection: object, deliver: Callable[[Reply], None]
    ) -> list[Call]:
        """Begin the calls that can take the fast path; return the others.

        Each reply is delivered as soon as it is ready.
        """
        batch = _Batch()
        others: list[Call] = []
        find = self._table.get
        for call in calls:
            params = call.params
            is_plain = call.method == "step" and len(params) == 1 and "action" in params
            session = find(call.session) if is_plain else None
            if session is None or not batch.add(session, call.id, connection, params["action"]):
                others.append(call)
        sessions, began_s = batch.sessions, time.monotonic()

        def deliver_batch(indices: Sequence[int], outcomes: Sequence[Any]) -> None:
            some = [sessions[i] for i in indices]
            for session, one in zip(some, self._record(some, outcomes, began_s), strict=True):
                deliver(session.as_reply(session.last_number, one))

        batch.submit(deliver_batch)
        return others

    def step(self, frame: Steps, connection: object, deliver: Callable[[Stepped], None]) -> None:
        """Take the steps of a frame, and deliver their results when all are done."""
        batch = _Batch()
        others: list[Coroutine[Any, Any, Reply]] = []
        find = self._table.get
        for i, (name, number) in enumerate(zip(frame.sessions, frame.numbers, strict=True)):
            session = find(name)
            if session is None or not batch.add(session, number, connection, frame.actions[i]):
                others.append(self._table.call(frame.call(i), connection))
        sessions, began_s = batch.sessions, time.monotonic()
        all_outcomes: list[Any] = [None] * len(sessions)
        pending = len(sessions) + len(others)
        rest: list[Reply] = []

        def deliver_batch(indices: Sequence[int], outcomes: Sequence[Any]) -> None:
            nonlocal pending
            if len(indices) == len(sessions) == pending:  # the usual case: all at once
                deliver(_columns(batch, self._record(sessions, outcomes, began_s), rest))
                return
            recorded = self._record([sessions[i] for i in indices], outcomes, began_s)
            for i, one in zip(indices, recorded, strict=True):
                all_outcomes[i] = one
            pending -= len(indices)
            if not pending:
                deliver(_columns(batch, all_outcomes, rest))

        async def carry_out() -> None:
            nonlocal pending
            rest.extend(await asyncio.gather(*others))
            pending -= len(others)
            if not pending:
                deliver(_columns(batch, all_outcomes, rest))

        if others or not sessions:
            task = asyncio.ensure_future(carry_out())
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        batch.submit(deliver_batch)

    def _record(
        self, sessions: Sequence[ServedSession], outcomes: Sequence[Any], began_s: float
    ) -> Sequence[Any]:
        """Record outcomes in their sessions; an outcome that is not ordinary becomes a reply."""
        now_s = time.monotonic()
        recorded = list(outcomes)
        codes = {"ok": 0}
        for i, session in enumerate(sessions):
            one, code = recorded[i], "ok"
            if type(one) is not StepResult:
                one = recorded[i] = self._reply(session, one)
                code = "ok" if one.fault is None else one.fault.code
            codes[code] = codes.get(code, 0) + 1
            session.end(one, now_s)
            if session.close_requested:
                self._table.close_if_requested(session)
        for watcher in self._table.watchers:
            for code, count in codes.items():
                watcher.called("step", code, now_s - began_s, count)
        return recorded

    def _reply(self, session: ServedSession, outcome: Any) -> Reply:
        reply = Reply(id=session.last_number, session=session.id)
        if isinstance(outcome, BaseException):
            reply.fault = self._table.fault_for("step", outcome)
        else:
            reply.result = outcome
        return reply


@final
class _Batch:
    """Steps that take the fast path.

    Attributes:
        sessions: The session of each step.
        numbers: The number of each call in its session.
    """

    def __init__(self) -> None:
        self.sessions: list[ServedSession] = []
        self.numbers: list[int] = []
        self._runners: list[ThreadedRunner] = []
        self._actions: list[Any] = []

    def add(self, session: ServedSession, number: int, connection: object, action: Any) -> bool:
        """Begin a step if it is the next call and the thread is known; return whether it was."""
        runner = session.runner
        if type(runner) is not ThreadedRunner or runner.thread is None:
            return False
        if not session.begin_step(number, connection):
            return False
        self.sessions.append(session)
        self.numbers.append(number)
        self._runners.append(runner)
        self._actions.append(action)
        return True

    def submit(self, deliver: Deliver) -> None:
        """Submit the steps: one job for quick steps that share a thread, else one per step."""
        if not self.sessions:
            return
        threads = [runner.affinity.thread for runner in self._runners]
        count, is_quick = len(threads), self._runners[0].pool.is_quick
        if count == 1 or (is_quick and threads.count(threads[0]) == count):
            self._submit(range(count), deliver)
            return
        groups: dict[Any, list[int]] = {}
        for i, thread in enumerate(threads):
            groups.setdefault(thread if is_quick else i, []).append(i)
        for indices in groups.values():
            self._submit(indices, deliver)

    def _submit(self, indices: Sequence[int], deliver: Deliver) -> None:
        def deliver_batch(some: Sequence[int], outcomes: Sequence[Any]) -> None:
            deliver([indices[i] for i in some], outcomes)

        runners, actions, is_all = self._runners, self._actions, len(indices) == len(self._runners)
        if not is_all:
            runners, actions = [runners[i] for i in indices], [actions[i] for i in indices]
        try:
            StepBatchJob(runners, actions, deliver if is_all else deliver_batch).start()
        except (PoolClosedError, ClosedError):
            deliver(indices, [ConnectionLostError("The server is stopping.")] * len(indices))


def _columns(batch: _Batch, outcomes: Sequence[Any], rest: list[Reply]) -> Stepped:
    """Return the answer to a frame: ordinary steps as columns, and replies to the others."""
    names = [session.id for session in batch.sessions]
    numbers, results = batch.numbers, outcomes
    if list(map(type, outcomes)).count(StepResult) < len(outcomes):
        indices = [i for i, one in enumerate(outcomes) if type(one) is StepResult]
        names, numbers = [names[i] for i in indices], [numbers[i] for i in indices]
        results = [outcomes[i] for i in indices]
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
