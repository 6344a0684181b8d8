"""One episode of code in a thread of this process."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast, final

from envweave.codeact.executors.base import Functions
from envweave.codeact.executors.local.body import ThreadBody
from envweave.codeact.executors.local.interpreting import Interpreter
from envweave.codeact.executors.local.modules import Modules
from envweave.codeact.executors.local.runner import LOOKS
from envweave.codeact.injected.files import FILE_TOOLS, functions, gates
from envweave.codeact.injected.variables import look
from envweave.codeact.models import Variable
from envweave.errors import SandboxError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.inside import channel
from envweave.sandbox.inside import interrupts as inside_interrupts
from envweave.sandbox.inside.tool_stubs import ToolError, make_tool
from envweave.sandbox.limits import Limits
from envweave.sandbox.results import ExecutionResult, ToolCall
from envweave.sandbox.tools import SandboxTools

logger = logging.getLogger("envweave.codeact")

Interpreting = Callable[[Modules], Interpreter]


@final
class LocalEpisode:
    """The code of one episode: its thread, its variables, its folder.

    Args:
        make: Makes what runs the code.
        limits: What the code may use. Memory, open files and processes are the host's own, and
            not limited.
        seed: Of `random` and numpy in the code.
        tools: What the code may call.
        files: Whether the file tools are among it.

    Attributes:
        names: The functions that code may call besides Python's own.
    """

    def __init__(
        self, make: Interpreting, limits: Limits, seed: int | None, tools: Functions, *, files: bool
    ) -> None:
        table = SandboxTools({**tools, **gates()} if files else dict(tools))
        self._limits = limits
        self._body = body = ThreadBody(limits)
        try:
            interpreter = make(Modules(seed, body.interrupts.pause))
            bound = {"ToolError": ToolError, **_bound(table, body, files=files)}
            interpreter.bind(bound)
            self._session = AsyncSession(body, limits, table, work=body.work)
        except BaseException:
            body.release()
            raise
        self.names = [face.name for face in table.signatures()]
        self._is_left_behind = False
        self._called: tuple[ToolCall, ...] = ()  # since the last run, by values that were shown
        self._own = list(bound)
        body.start(interpreter, self._own)

    async def run(self, code: str) -> ExecutionResult:
        """Run code. See `Executor.run`."""
        called, self._called = self._called, ()
        result = await self._session.run(code)
        result.tool_calls = called + result.tool_calls
        if result.session_ended and "time" in result.limits_hit:
            self._leave_behind()
            told = (
                f"The code ran longer than {self._limits.timeout_s:g} s, was interrupted, and did "
                f"not end within {self._limits.grace_s:g} s of that. A thread cannot be killed, so "
                "it was left behind."
            )
            result = dataclasses.replace(result, exception_message=told)
        return result

    async def variables(self) -> dict[str, Variable]:
        """Return what the code has bound. See `Executor.variables`."""
        seen = await look(self._session, LOOKS.__getitem__, self._own)
        self._called += seen.tool_calls
        return seen.variables

    async def close(self) -> None:
        """End it. Code that does not end within the grace period is left behind."""
        try:
            await self._session.close()
        except SandboxError:
            logger.warning("closing code that ran in this process failed", exc_info=True)
        wait_s = 0.0 if self._is_left_behind else self._limits.grace_s
        if not await asyncio.to_thread(self._body.wait, wait_s):
            self._leave_behind()

    def _leave_behind(self) -> None:
        if not self._is_left_behind:
            self._is_left_behind = True
            logger.warning("code did not end when it was interrupted; its thread is left behind")


def _bound(table: SandboxTools, body: ThreadBody, *, files: bool) -> Mapping[str, Any]:
    """Return the functions that code calls."""
    line = cast("channel.SessionChannel", body.line)  # it asks, as the sandbox's does
    interrupts = cast("inside_interrupts.Interrupts", body.interrupts)
    bound: dict[str, Any] = {
        face.name: make_tool(face, line, interrupts) for face in table.signatures()
    }
    if files:
        assert body.work is not None
        do = functions(body.work)
        bound.update({name: _joined(bound[name], do[name]) for name in FILE_TOOLS})
    return bound


def _joined(ask: Callable[..., Any], do: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that asks the host whether it may, and then does."""

    @functools.wraps(ask)
    def tool(*args: Any, **kwargs: Any) -> Any:
        ask(*args, **kwargs)
        return do(*args, **kwargs)

    return tool
