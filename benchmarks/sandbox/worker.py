"""A worker process of the sandbox benchmark, which measures one executor on request.

    python -m benchmarks.sandbox.worker open_exec

Requests and replies are JSON lines. The argument is a function of `executors.py`.

    {"command": "open"}                                     → {"settings": {…}}
    {"command": "time", "what": "hot", "seconds": 0.5}      → {"seconds": …}: of one
    {"command": "hold", "sessions": 1000}   → {"create": …, "step": …, "processes": [pid, …]}
    {"command": "release"}                                  → {"processes": [pid, …]}
    {"command": "close"}
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measurement.processes import serve_requests
from benchmarks.sandbox import executors
from benchmarks.sandbox.executors import Executor, Session

FIRST, FIRST_VALUE = "20 + 22", 42
STATE = "x = 41\nrows = [[i, str(i)] for i in range(1000)]"
"""The variables of a session whose steps or branches are measured."""
HOT, HOT_VALUE = "x + 1", 42
LOOP = "total = 0\nfor i in range(100_000):\n    total += i\ntotal"
LOOP_VALUE = 4999950000
TOOL_CALLS = 100
TOOL = f"y = 0\nfor _ in range({TOOL_CALLS}):\n    y = add(y, 1)\ny"

clock = time.perf_counter


def new_line(number: int) -> tuple[str, int]:
    """Return a line of code that was not run before, and its value."""
    return f"x + {number}", 41 + number


def new_cell(number: int) -> tuple[str, list[object]]:
    """Return eight lines of code that were not run before, and their value."""
    code = f"""total = {number}
counts = {{}}
for i in range(20):
    name = f"item {{i % 5}}"
    counts[name] = counts.get(name, 0) + i
    total += i * i
most = max(counts, key=lambda name: counts[name])
[total, most, counts[most]]"""
    return code, [number + 2470, "item 4", 46]


def expect(value: Any, expected: Any) -> None:
    """Raise if code returned another value than expected."""
    if value != expected:
        raise ValueError(f"the code returned {value!r} instead of {expected!r}")


class Worker:
    """The open sessions, and how each thing is measured: a method returns the seconds of one."""

    def __init__(self, open_executor: Callable[[], Executor]) -> None:
        self._open_executor = open_executor
        self._executor: Executor | None = None
        self._live: Session | None = None
        self._parent: Session | None = None
        self._held: list[Session] = []
        self._number = 0

    @property
    def executor(self) -> Executor:
        if self._executor is None:
            self._executor = self._open_executor()
        return self._executor

    @property
    def live(self) -> Session:
        """A session with variables."""
        if self._live is None:
            self._live = self._session_with_state()
        return self._live

    @property
    def parent(self) -> Session:
        """A session to branch: some are slower to copy the more code they have run."""
        if self._parent is None:
            self._parent = self._session_with_state()
        return self._parent

    def _session_with_state(self) -> Session:
        session = self.executor.session()
        session.run(STATE)
        return session

    def start(self) -> float:
        start_s = clock()
        executor = self._open_executor()
        session = executor.session()
        expect(session.run(FIRST), FIRST_VALUE)
        seconds = clock() - start_s
        session.close()
        executor.close()
        return seconds

    def create(self) -> float:
        start_s = clock()
        session = self.executor.session()
        expect(session.run(FIRST), FIRST_VALUE)
        seconds = clock() - start_s
        session.close()
        return seconds

    def life(self) -> float:
        start_s = clock()
        session = self.executor.session()
        expect(session.run(FIRST), FIRST_VALUE)
        session.close()
        return clock() - start_s

    def hot(self) -> float:
        return self._time_step(HOT, HOT_VALUE)

    def other(self) -> float:
        self._number += 1
        return self._time_step(*new_line(self._number))

    def cell(self) -> float:
        self._number += 1
        return self._time_step(*new_cell(self._number))

    def loop(self) -> float:
        return self._time_step(LOOP, LOOP_VALUE)

    def tool(self) -> float:
        return self._time_step(TOOL, TOOL_CALLS) / TOOL_CALLS

    def _time_step(self, code: str, expected: Any) -> float:
        run = self.live.run
        start_s = clock()
        value = run(code)
        seconds = clock() - start_s
        expect(value, expected)
        return seconds

    def branch(self) -> float:
        parent = self.parent
        start_s = clock()
        copy = self.executor.branch(parent)
        expect(copy.run(HOT), HOT_VALUE)
        seconds = clock() - start_s
        copy.close()
        return seconds

    def average(self, what: str, seconds: float) -> float:
        """Measure for this time, at least once, and return the average."""
        measure = getattr(self, what)
        measure()  # warm-up
        gc.collect()
        samples, deadline_s = [], clock() + seconds
        while not samples or clock() < deadline_s:
            samples.append(measure())
        return sum(samples) / len(samples)

    def hold(self, sessions: int) -> dict[str, Any]:
        """Open sessions and run code in each; then again, in all of them."""
        start_s = clock()
        if self.executor.many is not None:
            self._held = self.executor.many(sessions)
        while len(self._held) < sessions:
            self._held.append(self.executor.session())
        for session in self._held:
            expect(session.run("x = 41\nx"), 41)
        created_s = clock()
        for session in self._held:
            expect(session.run(HOT), HOT_VALUE)
        create_s, step_s = created_s - start_s, clock() - created_s
        return {
            "create": create_s / sessions,
            "step": step_s / sessions,
            "processes": self.executor.processes(),
        }

    def release(self) -> None:
        while self._held:
            self._held.pop().close()

    def close(self) -> None:
        self.release()
        for session in (self._live, self._parent):
            if session is not None:
                session.close()
        if self._executor is not None:
            self._executor.close()
        self._live = self._parent = self._executor = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return the reply."""
        match request["command"]:
            case "open":
                expect(self.live.run(HOT), HOT_VALUE)
                return {"settings": dict(self.executor.settings)}
            case "time":
                return {"seconds": self.average(request["what"], request["seconds"])}
            case "hold":
                return self.hold(request["sessions"])
            case "release":
                self.release()
                return {"processes": self.executor.processes()}
            case "close":
                self.close()
        return {}


if __name__ == "__main__":
    serve_requests(Worker(getattr(executors, sys.argv[1])).handle)
