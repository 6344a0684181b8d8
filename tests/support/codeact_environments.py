"""CodeAct environments, ways to open them, and attempts and observations that run no code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import envweave as ew
from envweave import CodeObservation
from envweave.codeact import Attempt, Grade, Grader
from envweave.codeact.executors.sandbox import SandboxOptions, take_lease
from envweave.codeact.injected.prelude import MODULES
from envweave.codeact.models import exit_code_of, stderr_of
from envweave.sandbox import ExecutionResult
from envweave.types import Task

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
    """The outcome of a step, with any client."""

    observation: Any
    reward: Any
    done: bool
    end: dict[str, Any] | None = None

    @property
    def value(self) -> Any:
        return self.observation.execution_result.return_value

    @property
    def execution(self) -> Any:
        return self.observation.execution_result

    @property
    def limits_hit(self) -> tuple[str, ...]:
        return tuple(self.execution.limits_hit)

    @property
    def exit_code(self) -> int:
        # A client with only a URL knows the fields of the server's classes, not their methods.
        return exit_code_of(self.execution)

    @property
    def stderr(self) -> str:
        return stderr_of(self.execution)


@dataclass
class CodeClient:
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


LOCAL_CLIENTS = ("direct", "make", "register", "async", "vector", "served")
"""Those within this process."""

REMOTE_CLIENTS = ("process", "http", "vector-process", "vector-http")
"""Those that start another process."""


@contextmanager
def keep_sandbox(**options: Any) -> Iterator[None]:
    """Keep the sandbox that environments with these options share, so that tests are quicker."""
    env = coder(**options)
    release = env.hold()
    env.close()
    try:
        yield
    finally:
        release()


def lease_sandbox(**options: Any) -> Any:
    """Take a lease of the sandbox that environments with these options share."""
    return take_lease(SandboxOptions(**options))


def lease_grading_sandbox(**options: Any) -> Any:
    """Take a lease of the sandbox that graders with these options share."""
    return lease_sandbox(preload=MODULES, **options)


@contextmanager
def open_client(name: str, make: Any = coder, **options: Any) -> Iterator[CodeClient]:
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
            yield CodeClient(env, name, loop)
            return
        elif name == "served":
            from servers import served  # and with it uvicorn, which most tests do not need

            url = stack.enter_context(served(lambda: make(**options)))
            env = stack.enter_context(ew.make(url))
        elif name.startswith("vector"):
            backend = name.partition("-")[2] or "inproc"
            env = stack.enter_context(ew.make_vector(make, num_envs=1, backend=backend, **options))
        else:
            env = stack.enter_context(ew.make(make, backend=name, **options))
        yield CodeClient(env, name)


GATE = threading.Event()
"""What code in this process may wait for, which no exception gets it out of."""


def attempt(
    answer: Any = None,
    *,
    program: str = "",
    prompt: str | None = None,
    private: dict[str, Any] | None = None,
    **more: Any,
) -> Attempt:
    """Return what an agent might hand in; about a task, if it has a prompt or a private part."""
    is_about = prompt is not None or private is not None
    about = Task("t", data={"prompt": prompt or ""}, private=private or {}) if is_about else None
    result = ExecutionResult(success=True)
    return Attempt(code=program, program=program, result=result, answer=answer, task=about, **more)


def graded(grader: Grader, answer: Any = None, **more: Any) -> Grade:
    """Return the grade of one attempt, with the grader closed."""

    async def ask() -> Grade:
        try:
            return await grader.grade(attempt(answer, **more))
        finally:
            await grader.close()

    return asyncio.run(ask())


UNSAFE = "import os\n42"
SAFE = "21 * 2"


def code_observation(
    code: str = SAFE, value: Any = 42, *, reward: float | None = None, **result: Any
) -> Any:
    """Return the observation of a step that came to `value`, unless `result` says otherwise."""
    execution = {"success": True, "return_value": value, "duration_s": 0.01, **result}
    if value is not None:
        execution.setdefault("return_repr", "…")
    return CodeObservation(code=code, reward=reward, execution_result=ExecutionResult(**execution))


def failed_code_observation(code: str = "1 / 0") -> Any:
    """Return the observation of a step whose code raised."""
    return code_observation(code, None, success=False, exception_type="ZeroDivisionError")


def parts_of(observation: Any) -> dict[str, float]:
    """Return the parts of its reward."""
    parts: dict[str, float] = observation.metadata["reward_parts"]
    return parts
