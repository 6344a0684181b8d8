"""Steps, from a frame to the replies in another: of one session, or of a vector.

A step that is the next call of its session begins without a task, and steps that are quick share a
job. Every other call is left to `SessionTable.call`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, final

from envweave.errors import ConnectionLostError
from envweave.server.runtime.runners import Deliver, StepJob, ThreadedRunner
from envweave.server.runtime.thread_pool import PoolClosedError
from envweave.server.sessions import ServedSession, SessionTable
from envweave.types import StepResult
from envweave.wire.columns import columns_of
from envweave.wire.messages import Call, Reply, Stepped, Steps


@final
class StepStarter:
    """Begins steps of the sessions of a table."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._working: set[asyncio.Task[None]] = set()

    def start(
        self, calls: Sequence[Call], connection: object, deliver: Callable[[Reply], None]
    ) -> list[Call]:
        """Begin the steps among these calls; return the calls that need a task.

        Each reply is delivered as soon as it is ready.
        """
        began_s = time.monotonic()

        def deliver_some(sessions: Sequence[ServedSession], outcomes: Sequence[Any]) -> None:
            recorded = self._record(sessions, outcomes, began_s)
            for session, one in zip(sessions, recorded, strict=True):
                deliver(session.as_reply(session.last_number, one))

        jobs = _Jobs(connection, deliver_some)
        others: list[Call] = []
        find = self._table.get
        for call in calls:
            params = call.params
            is_plain = call.method == "step" and len(params) == 1 and "action" in params
            session = find(call.session) if is_plain else None
            if session is None or not jobs.add(session, call.id, params["action"]):
                others.append(call)
        jobs.submit()
        return others

    def step(self, frame: Steps, connection: object, deliver: Callable[[Stepped], None]) -> None:
        """Take the steps of a frame, and deliver their results when all are done."""
        began_s = time.monotonic()
        sessions: list[ServedSession] = []
        outcomes: list[Any] = []
        rest: list[Reply] = []
        pending = len(frame.sessions)

        def deliver_some(some: Sequence[ServedSession], their: Sequence[Any]) -> None:
            nonlocal pending
            sessions.extend(some)
            outcomes.extend(self._record(some, their, began_s))
            pending -= len(some)
            if not pending:
                deliver(_columns(sessions, outcomes, rest))

        async def carry_out(others: list[Coroutine[Any, Any, Reply]]) -> None:
            nonlocal pending
            rest.extend(await asyncio.gather(*others))
            pending -= len(others)
            if not pending:
                deliver(_columns(sessions, outcomes, rest))

        jobs = _Jobs(connection, deliver_some)
        others: list[Coroutine[Any, Any, Reply]] = []
        find, add = self._table.get, jobs.add
        rows = zip(frame.sessions, frame.numbers, frame.actions, strict=True)
        for i, (name, number, action) in enumerate(rows):
            session = find(name)
            if session is None or not add(session, number, action):
                others.append(self._table.call(frame.call(i), connection))
        if others or not pending:
            task = asyncio.ensure_future(carry_out(others))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        jobs.submit()

    def _record(
        self, sessions: Sequence[ServedSession], outcomes: Sequence[Any], began_s: float
    ) -> Sequence[Any]:
        """Record outcomes in their sessions; an outcome that is not ordinary becomes a reply."""
        now_s = time.monotonic()
        recorded = list(outcomes)
        codes: dict[str, int] = {}
        ordinary = 0
        for i, session in enumerate(sessions):
            one = recorded[i]
            if type(one) is StepResult:
                ordinary += 1
            else:
                one = recorded[i] = self._reply(session, one)
                code = "ok" if one.fault is None else one.fault.code
                codes[code] = codes.get(code, 0) + 1
            session.end(one, now_s)
            if session.close_requested:
                self._table.close_if_requested(session)
        if ordinary:
            codes["ok"] = codes.get("ok", 0) + ordinary
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
class _Jobs:
    """The jobs of a frame: one for quick steps that share a thread, else one for each step.

    Args:
        connection: The connection that the frame came by.
        deliver: Receives the outcomes of the steps, with their sessions.
    """

    def __init__(self, connection: object, deliver: Deliver) -> None:
        self._connection = connection
        self._deliver = deliver
        self._jobs: dict[object, StepJob] = {}

    def add(self, session: ServedSession, number: int, action: Any) -> bool:
        """Begin a step if it is the next call of its session; return whether it was begun."""
        runner = session.runner
        if type(runner) is not ThreadedRunner or runner.driver is None:
            return False
        if not session.begin_step(number, self._connection):
            return False
        timeout_s, thread = session.timeout_s, runner.affinity.thread
        key: object = session
        if timeout_s is None and thread is not None and (thread.loop or runner.pool.is_quick):
            key = thread
        job = self._jobs.get(key)
        if job is None:
            self._jobs[key] = StepJob(session, runner, action, self._deliver, timeout_s)
        else:
            job.add(session, runner, action)
        return True

    def submit(self) -> None:
        """Submit the steps."""
        for job in self._jobs.values():
            try:
                job.pool.submit(job)
            except PoolClosedError:
                self._deliver(job.owners, [_STOPPING] * len(job.owners))


_STOPPING = ConnectionLostError("The server is stopping.")


def _columns(
    sessions: Sequence[ServedSession], outcomes: Sequence[Any], rest: list[Reply]
) -> Stepped:
    """Return the answer to a frame: ordinary steps as columns, and replies to the others."""
    results = outcomes
    if list(map(type, outcomes)).count(StepResult) < len(outcomes):
        indices = [i for i, one in enumerate(outcomes) if type(one) is StepResult]
        sessions, results = [sessions[i] for i in indices], [outcomes[i] for i in indices]
        rest = [*rest, *(one for one in outcomes if type(one) is not StepResult)]
    rewards = [result.reward for result in results]
    infos = [result.info for result in results]
    tasks = [result.task_id for result in results]
    observations, is_implied = columns_of([one.observation for one in results], rewards, infos)
    return Stepped(
        sessions=[session.id for session in sessions],
        numbers=[session.last_number for session in sessions],
        observations=observations,
        rewards=rewards,
        episodes=[result.episode_id for result in results],
        indices=[result.step_index for result in results],
        is_implied=is_implied,
        infos=[(i, info) for i, info in enumerate(infos) if info] if any(infos) else [],
        tasks=tasks if any(tasks) else [],
        rest=rest,
    )
