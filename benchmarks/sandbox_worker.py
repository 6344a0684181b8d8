"""A process of sandbox.py: one contender, which does what it is told on its input.

    python sandbox_worker.py sandbox_exec:open_exec

Everyone runs this same program, in the interpreter where its library is (see `ordered.py`).

    {"do": "open"}                                  → {"setting": {…}}
    {"do": "time", "what": "hot", "seconds": 0.5}   → {"seconds": …}: of one
    {"do": "hold", "sessions": 1000}                → {"create": …, "step": …, "also": [pid, …]}
    {"do": "drop"}                                  → {"also": [pid, …]}
    {"do": "close"}
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import sandbox_code as code
from ordered import obey_orders
from sandbox_box import Box, Session

clock = time.perf_counter


def expect(found: Any, wanted: Any) -> None:
    """Raise if code did not come to what it has to."""
    if found != wanted:
        raise ValueError(f"it returned {found!r} instead of {wanted!r}")


class Worker:
    """What is open, and how each thing is measured. A method returns the seconds of one."""

    def __init__(self, open_box: Callable[[], Box]) -> None:
        self._open_box = open_box
        self._box: Box | None = None
        self._live: Session | None = None
        self._parent: Session | None = None
        self._held: list[Session] = []
        self._number = 0

    @property
    def box(self) -> Box:
        if self._box is None:
            self._box = self._open_box()
        return self._box

    @property
    def live(self) -> Session:
        """A session in the middle of its life."""
        if self._live is None:
            self._live = self._prepared()
        return self._live

    @property
    def parent(self) -> Session:
        """A session that did nothing else: some are slower to copy the more they have run."""
        if self._parent is None:
            self._parent = self._prepared()
        return self._parent

    def _prepared(self) -> Session:
        session = self.box.session()
        session.run(code.STATE)
        return session

    def start(self) -> float:
        """From nothing to the first result."""
        began_s = clock()
        box = self._open_box()
        session = box.session()
        expect(session.run(code.FIRST), code.FIRST_VALUE)
        spent_s = clock() - began_s
        session.close()
        box.close()
        return spent_s

    def create(self) -> float:
        began_s = clock()
        session = self.box.session()
        expect(session.run(code.FIRST), code.FIRST_VALUE)
        spent_s = clock() - began_s
        session.close()
        return spent_s

    def life(self) -> float:
        began_s = clock()
        session = self.box.session()
        expect(session.run(code.FIRST), code.FIRST_VALUE)
        session.close()
        return clock() - began_s

    def hot(self) -> float:
        return self._clocked(code.HOT, code.HOT_VALUE)

    def other(self) -> float:
        self._number += 1
        return self._clocked(*code.other(self._number))

    def cell(self) -> float:
        self._number += 1
        return self._clocked(*code.cell(self._number))

    def loop(self) -> float:
        return self._clocked(code.LOOP, code.LOOP_VALUE)

    def tool(self) -> float:
        return self._clocked(code.TOOL, code.CALLS) / code.CALLS

    def _clocked(self, text: str, wanted: Any) -> float:
        run = self.live.run
        began_s = clock()
        found = run(text)
        spent_s = clock() - began_s
        expect(found, wanted)
        return spent_s

    def branch(self) -> float:
        parent = self.parent
        began_s = clock()
        twin = self.box.branch(parent)
        expect(twin.run(code.HOT), code.HOT_VALUE)
        spent_s = clock() - began_s
        twin.close()
        return spent_s

    def timed(self, what: str, seconds: float) -> float:
        """Measure for so long, at least once, and return the seconds of one."""
        one = getattr(self, what)
        one()  # uncounted: whatever slept is awake
        gc.collect()
        spent, until_s = [], clock() + seconds
        while not spent or clock() < until_s:
            spent.append(one())
        return sum(spent) / len(spent)

    def hold(self, sessions: int) -> dict[str, Any]:
        """Make sessions and run code in each; then once more, in all of them."""
        began_s = clock()
        if self.box.many is not None:
            self._held = self.box.many(sessions)
        while len(self._held) < sessions:
            self._held.append(self.box.session())
        for session in self._held:
            expect(session.run("x = 41\nx"), 41)
        made_s = clock()
        for session in self._held:
            expect(session.run(code.HOT), code.HOT_VALUE)
        create_s, step_s = made_s - began_s, clock() - made_s
        return {"create": create_s / sessions, "step": step_s / sessions, "also": self.box.also()}

    def drop(self) -> None:
        while self._held:
            self._held.pop().close()

    def close(self) -> None:
        self.drop()
        for session in (self._live, self._parent):
            if session is not None:
                session.close()
        if self._box is not None:
            self._box.close()
        self._live = self._parent = self._box = None

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order, and return the answer to it."""
        if order["do"] == "time":
            return {"seconds": self.timed(order["what"], order["seconds"])}
        if order["do"] == "hold":
            return self.hold(order["sessions"])
        if order["do"] == "drop":
            self.drop()
            return {"also": self.box.also()}
        if order["do"] == "close":
            self.close()
        else:
            expect(self.live.run(code.HOT), code.HOT_VALUE)
            return {"setting": dict(self.box.setting)}
        return {}


def main(target: str) -> int:
    module, _, name = target.partition(":")

    def open_box() -> Box:
        # Late, so that a library that is not there is told of in an answer.
        return getattr(importlib.import_module(module), name)()

    obey_orders(Worker(open_box).obey)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
