"""Environments for servers: they count, hang, crash and wait as they are told."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import ClassVar

import envweave as ew


@dataclass
class TallyAction(ew.Action):
    """What to do: `"step"`, `"end"`, `"hang"`, `"spin"` or `"crash"`."""

    do: str = "step"


@dataclass
class TallyObservation(ew.Observation):
    at: int = 0
    seed: int | None = None


@dataclass
class TallyState(ew.State):
    at: int = 0
    pid: int = 0
    thread: int = 0


class Tally(ew.Environment):
    """Counts its own steps, so that a step taken twice or lost is seen.

    Attributes:
        made: How many there were in this process.
        hung: What a hanging step waits for.
        hanging: Set when a step hangs.
        counting: Held while counting: servers make and close on several threads.
    """

    made: ClassVar[int] = 0
    open: ClassVar[int] = 0
    hung: ClassVar[threading.Event] = threading.Event()
    hanging: ClassVar[threading.Event] = threading.Event()
    counting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, size: int = 0) -> None:
        with self.counting:
            type(self).made += 1
            type(self).open += 1
        self._size = size
        self._at = 0
        self._seed: int | None = None

    def reset(self, *, seed: int | None = None) -> TallyObservation:
        self._at, self._seed = 0, seed
        return TallyObservation(0, seed)

    def step(self, action: TallyAction) -> TallyObservation:
        self._at += 1
        if action.do == "hang":
            self.hanging.set()
            self.hung.wait(60)
        while action.do == "spin":
            pass
        if action.do == "crash":
            ctypes.string_at(0)
        shown = TallyObservation(self._at, self._seed, reward=1.0, done=action.do == "end")
        if self._size:
            shown.metadata["padding"] = "x" * self._size
        return shown

    @property
    def state(self) -> TallyState:
        return TallyState(at=self._at, pid=os.getpid(), thread=threading.get_ident())

    def close(self) -> None:
        with self.counting:
            type(self).open -= 1
