"""Environments for servers: plain HTTP, WebSocket, and OpenEnv clients."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

import envweave as ew


class Gated(ew.Environment):
    """Waits in each step until it is let go on; counts its steps."""

    entered = threading.Event()
    may_go_on = threading.Event()

    def __init__(self) -> None:
        self.steps = 0

    def reset(self) -> int:
        return 0

    def step(self, action: bool) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.entered.set()
        assert self.may_go_on.wait(20)
        return self.steps, 1.0, False, False, {}


class Broken(ew.Environment):
    """Fails in `reset` with a secret in its message."""

    def reset(self) -> int:
        raise RuntimeError("no such file: /etc/some/where")

    def step(self, action: bool) -> tuple[int, float, bool, bool, dict[str, Any]]:
        raise NotImplementedError


@dataclass
class Move(ew.Action):
    by: int


@dataclass
class Seen(ew.Observation):
    at: int


class Untyped(ew.Environment):
    """Says nothing of what it takes and shows."""

    def __init__(self, start: int = 0) -> None:
        self.at = start

    def reset(self):
        return Seen(self.at)

    def step(self, action):
        assert isinstance(action, Move), action
        self.at += action.by
        return Seen(self.at, reward=1.0)


class Rough(Untyped):
    """Names the classes above its own, as many do."""

    def step(self, action: ew.Action) -> ew.Observation:
        return super().step(action)


@dataclass
class Turn(ew.Action):
    """How to turn a lamp."""

    way: Literal["on", "off"]
    brightness: float = 1.0
    note: str | None = None


@dataclass
class Light(ew.Observation):
    is_on: bool = False


@dataclass
class LampState(ew.State):
    turns: dict[str, int] = field(default_factory=dict)


class Lamp(ew.Environment):
    """Takes everything that a reset can be given, and actions of several kinds of fields."""

    tasks = ew.Tasks({"train": [ew.Task("dark"), ew.Task("bright")]})

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def reset(
        self,
        *,
        seed: int | None = None,
        task: ew.Task | None = None,
        options: dict[str, Any] | None = None,
    ) -> Light:
        self._turns = {}
        return Light()

    def step(self, action: Turn) -> Light:
        self._turns[action.way] = self._turns.get(action.way, 0) + 1
        return Light(action.way == "on", reward=action.brightness)

    @property
    def state(self) -> LampState:
        return LampState(turns=dict(self._turns))


class Pixels(ew.Environment):
    """Shows an array, and takes a number."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._at = int((options or {}).get("start", 0))
        return self._shown(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._at += action
        return self._shown(), 1.0, False, self._at >= 3, {"at": self._at}

    def _shown(self) -> np.ndarray:
        return np.full((2, 2), self._at, np.float32)


class Talk(ew.Environment):
    """Shows a text, and takes one."""

    def reset(self) -> str:
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action.upper(), 0.5, action == "bye", False, {}


@dataclass
class DoAction(ew.Action):
    do: str = "go"


@dataclass
class StepsObservation(ew.Observation):
    steps: int = 0


class FailsOrWaits(ew.Environment):
    """Fails, or waits, as its action says.

    Attributes:
        waiting: Set when a step waits.
        go_on: What it waits for.
        open: How many there are.
    """

    waiting: ClassVar[threading.Event] = threading.Event()
    go_on: ClassVar[threading.Event] = threading.Event()
    open: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).open += 1
        self._steps = 0

    def reset(self, *, seed: int | None = None) -> StepsObservation:
        self._steps = 0
        return StepsObservation()

    def step(self, action: DoAction) -> StepsObservation:
        self._steps += 1
        if action.do == "fail":
            raise RuntimeError("as requested")
        if action.do == "wait":
            self.waiting.set()
            self.go_on.wait(30)
        return StepsObservation(self._steps, reward=1.0)

    def close(self) -> None:
        type(self).open -= 1


@dataclass
class Account(ew.Observation):
    value: int = 0
    note: str = ""


class CustomOpenEnvFields(ew.Environment):
    """Has a field of its own, besides those that OpenEnv has a class for."""

    openenv_fields = ("value",)

    def reset(self, *, seed: int | None = None) -> Account:
        return Account(note="hello")

    def step(self, action: int) -> Account:
        return Account(value=action, note="there you are", reward=1.0, metadata={"more": 1})


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
