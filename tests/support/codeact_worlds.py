"""Environments for code, as worker processes and servers import them, and the roads to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from serving import served

import envweave as ew
from envweave.codeact.models import exit_code_of, stderr_of

QUICK = {"timeout_s": 0.5, "grace_s": 1.0}
"""Limits for code that is meant to run into them."""


def coder(**options: Any) -> Any:
    """Return an environment that runs code, with two tools."""
    return ew.create_codeact_env(tools=[add, later], **options)


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


async def later(value: str) -> str:
    """Return what it is given, some time."""
    await asyncio.sleep(0)
    return value


@dataclass
class Step:
    """What a step came to, whichever road it took."""

    observation: Any
    reward: Any
    done: bool
    end: dict[str, Any] | None = None

    @property
    def value(self) -> Any:
        return self.observation.execution_result.return_value

    @property
    def told(self) -> Any:
        return self.observation.execution_result

    @property
    def limits_hit(self) -> tuple[str, ...]:
        return tuple(self.told.limits_hit)

    @property
    def exit_code(self) -> int:
        # Whoever knows a server's URL alone knows the fields of its classes, not their methods.
        return exit_code_of(self.told)

    @property
    def stderr(self) -> str:
        return stderr_of(self.told)


@dataclass
class Road:
    """A way to an environment: `reset`, `step` and `state` whatever it is."""

    env: Any
    name: str
    loop: asyncio.AbstractEventLoop | None = None

    def reset(self, **wanted: Any) -> Any:
        if self.name.startswith("vector"):
            return self.env.reset(**wanted)[0].observation
        result = self._await(self.env.reset(**wanted))
        return result if self.name == "direct" else result.observation

    def step(self, code: str) -> Step:
        action = {"code": code}
        if self.name == "direct":
            shown = self.env.step(action)
            end = shown.metadata.get("end")
            return Step(shown, shown.reward, shown.done or shown.truncated, end)
        if self.name.startswith("vector"):
            result = self.env.step([action])[0]
        else:
            result = self._await(self.env.step(action))
        end = result.end and {
            "reason": result.end.reason,
            "blame": result.end.blame,
            "cause": result.end.cause,
        }
        return Step(result.observation, result.reward, result.done, end)

    def state(self) -> Any:
        if self.name == "direct":
            return self.env.state
        if self.name.startswith("vector"):
            return self.env.state()[0]
        return self._await(self.env.state())

    def _await(self, value: Any) -> Any:
        return value if self.loop is None else self.loop.run_until_complete(value)


ROADS = ("direct", "make", "register", "async", "vector", "served")
"""Those within this process."""

FAR_ROADS = ("process", "http", "vector-process", "vector-http")
"""Those that start another process."""


@contextmanager
def held(**options: Any) -> Iterator[None]:
    """Keep the sandbox that environments with these options share, so that tests are quicker."""
    env = coder(**options)
    let_go = env.hold()
    env.close()
    try:
        yield
    finally:
        let_go()


@contextmanager
def road(name: str, make: Any = coder, **options: Any) -> Iterator[Road]:
    """Go to an environment that `make` makes with these options."""
    with ExitStack() as stack:
        if name == "direct":
            env = make(**options)
            stack.callback(env.close)
        elif name == "make":
            env = stack.enter_context(ew.make(make(**options)))
        elif name == "register":
            registry = ew.Registry()
            registry.register("local://coder-v0", factory=make, kwargs=options)
            env = stack.enter_context(ew.make("local://coder-v0", registry=registry))
        elif name == "async":
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)
            stack.callback(lambda: loop.run_until_complete(loop.shutdown_default_executor()))
            env = ew.make_async(make, **options)
            stack.callback(lambda: loop.run_until_complete(env.close()))
            yield Road(env, name, loop)
            return
        elif name == "served":
            url = stack.enter_context(served(lambda: make(**options)))
            env = stack.enter_context(ew.make(url))
        elif name.startswith("vector"):
            backend = name.partition("-")[2] or "inproc"
            env = stack.enter_context(ew.make_vector(make, num_envs=1, backend=backend, **options))
        else:
            env = stack.enter_context(ew.make(make, backend=name, **options))
        yield Road(env, name)


GATE = threading.Event()
"""What code in this process may wait for, which no exception gets it out of."""
