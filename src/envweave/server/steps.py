"""Steps, from a frame to the replies in another: of one session, or of a vector.

A step that is the next call of its session begins without a task, and steps that are quick share a
job. Every other call is left to `SessionTable.call`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from envweave.server.runtime.threaded_runner import Deliver, StepJob, ThreadedRunner
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
        find = self._table.get
        sessions: list[ServedSession | None] = []
        numbers: list[int] = []
        actions: list[Any] = []
        for call in calls:
            params = call.params
            is_plain = call.method == "step" and len(params) == 1 and "action" in params
            sessions.append(find(call.session) if is_plain else None)
            numbers.append(call.id)
            actions.append(params.get("action"))

        def deliver_some(rows: Sequence[int], outcomes: Sequence[Any]) -> None:
            recorded = self._record(sessions, rows, outcomes, began_s)
            for row, one in zip(rows, recorded, strict=True):
                session = sessions[row]
                assert session is not None  # its step was begun
                deliver(session.as_reply(numbers[row], one))

        others = self._begin(sessions, numbers, actions, connection, deliver_some)
        return [calls[row] for row in others] if others else []

    def step(self, frame: Steps, connection: object, deliver: Callable[[Stepped], None]) -> None:
        """Take the steps of a frame, and deliver their results when all are done."""
        began_s = time.monotonic()
        names = frame.sessions
        sessions = list(map(self._table.get, names))
        results: list[Any] = [None] * len(names)  # by row, whichever is done first
        pending = len(names)

        def deliver_some(rows: Sequence[int], outcomes: Sequence[Any]) -> None:
            nonlocal pending, results
            recorded = self._record(sessions, rows, outcomes, began_s)
            if len(rows) == len(names):
                results = recorded
            else:
                for row, one in zip(rows, recorded, strict=True):
                    results[row] = one
            pending -= len(rows)
            if not pending:
                deliver(_columns(frame, results))

        async def carry_out(rows: list[int]) -> None:
            nonlocal pending
            calls = [self._table.call(frame.call(row), connection) for row in rows]
            for row, reply in zip(rows, await asyncio.gather(*calls), strict=True):
                results[row] = reply
            pending -= len(rows)
            if not pending:
                deliver(_columns(frame, results))

        others = self._begin(sessions, frame.numbers, frame.rows, connection, deliver_some)
        if others or not names:
            task = asyncio.ensure_future(carry_out(others))
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    def _begin(
        self,
        sessions: Sequence[ServedSession | None],
        numbers: Sequence[int],
        actions: Sequence[Any],
        connection: object,
        deliver: Deliver,
    ) -> list[int]:
        """Begin the steps that are the next calls of their sessions; return the other rows.

        Quick steps that share a thread share a job.
        """
        others: list[int] = []
        jobs: dict[object, list[int]] = {}
        runners: list[Any] = []
        for row, session in enumerate(sessions):
            runner = None if session is None else session.runner
            runners.append(runner)
            if (
                type(runner) is not ThreadedRunner
                or runner.driver is None
                or session is None
                or not session.begin_step(numbers[row], connection)
            ):
                others.append(row)
                continue
            thread = runner.affinity.thread
            key: object = session
            if thread is not None and (thread.loop is not None or runner.pool.is_quick):
                key = thread if session.timeout_s is None else (thread, session.timeout_s)
            rows = jobs.get(key)
            if rows is None:
                jobs[key] = [row]
            else:
                rows.append(row)
        for rows in jobs.values():
            first = sessions[rows[0]]
            assert first is not None  # its step was begun
            timeout_s = first.timeout_s
            if len(rows) == len(sessions):
                StepJob(rows, runners, actions, deliver, timeout_s).submit()
                break
            chosen, given = [runners[row] for row in rows], [actions[row] for row in rows]
            StepJob(rows, chosen, given, deliver, timeout_s).submit()
        return others

    def _record(
        self,
        sessions: Sequence[ServedSession | None],
        rows: Sequence[int],
        outcomes: Sequence[Any],
        began_s: float,
    ) -> list[Any]:
        """Record outcomes in their sessions; an outcome that is not ordinary becomes a reply."""
        now_s = time.monotonic()
        recorded = list(outcomes)
        codes: dict[str, int] = {}
        ordinary = 0
        for i, row in enumerate(rows):
            session, one = sessions[row], recorded[i]
            assert session is not None  # its step was begun
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


def _columns(frame: Steps, results: list[Any]) -> Stepped:
    """Return the answer to a frame: ordinary steps as columns, and replies to the others."""
    sessions, numbers, rest = frame.sessions, frame.numbers, []
    if list(map(type, results)).count(StepResult) < len(results):
        rows = [row for row, one in enumerate(results) if type(one) is StepResult]
        rest = [one for one in results if type(one) is not StepResult]
        sessions, numbers = [sessions[row] for row in rows], [numbers[row] for row in rows]
        results = [results[row] for row in rows]
    rewards = [result.reward for result in results]
    infos = [result.info for result in results]
    tasks = [result.task_id for result in results]
    observations, is_implied = columns_of([one.observation for one in results], rewards, infos)
    return Stepped(
        sessions=sessions,
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
