"""Environments behind plain HTTP, and short ways to call them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.testclient import TestClient

import envweave as ew
from envweave.api.serving import create_fastapi_app


@contextmanager
def client_of(env: Any, *args: Any, **keywords: Any) -> Iterator[TestClient]:
    """Serve an environment in this process while the block runs; yield who calls it."""
    app = create_fastapi_app(env, *args, **keywords)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def step(client: TestClient, delta: int = 1, **more: Any) -> Any:
    headers = more.pop("headers", {})
    return client.post("/step", json={"action": {"delta": delta}, **more}, headers=headers)


def error_in(response: Any) -> str:
    """The code of a refusal, whose body holds a fault and nothing else."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message"}
    assert "Traceback" not in body["error"]["message"]
    return f"{response.status_code} {body['error']['code']}"


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
