"""Finds, checks and counts the tools that code calls, and keeps what came of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, final

from envweave.errors import PlainDataError
from envweave.sandbox.limits import Limits
from envweave.sandbox.protocol.messages import HEADER_BYTES, Called, ToolAnswer
from envweave.sandbox.protocol.plain_values import encode, pack
from envweave.sandbox.results import ToolCall
from envweave.sandbox.tools import ArgumentsError, SandboxTool, SandboxTools, described

LATE = "TimeoutError: The time limit of the run passed while the tool ran."
"""What code is told whose tool took longer than the code may."""

_KEPT_BYTES = 1 << 20
_NAME_CHARACTERS = 100
_NOTHING: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


@final
class ToolInvocation:
    """A tool that the code calls, found and with arguments that fit: run it, then answer."""

    __slots__ = ("args", "call", "given", "kwargs", "size", "start_s", "tool")

    def __init__(
        self, said: Called, tool: SandboxTool, args: Any, kwargs: Any, size: int, start_s: float
    ) -> None:
        self.call = said.call
        self.given = (tuple(said.args), said.kwargs)
        self.tool = tool
        self.args = args
        self.kwargs = kwargs
        self.size = size
        self.start_s = start_s

    def __call__(self) -> Any:
        """Call the tool."""
        return self.tool.function(*self.args, **self.kwargs)


@final
class Broker:
    """Stands between the code of a session and the tools of the host.

    What a call was given and what it gave is kept for the result, up to a megabyte in all; calls
    beyond that are kept without. A thousand of the largest would fill the host.
    """

    def __init__(self, limits: Limits, tools: SandboxTools, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._tools = tools
        self._clock = clock
        self._count = 0
        self._kept: list[ToolCall] = []
        self._left_bytes = _KEPT_BYTES

    def start_over(self) -> None:
        """Begin a new run."""
        if self._count:
            self._count = 0
            self._kept = []
            self._left_bytes = _KEPT_BYTES

    @property
    def is_overdrawn(self) -> bool:
        """Whether the code called more tools than it may."""
        return self._count > self._limits.tool_calls

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the tools that the code called, in order."""
        return tuple(self._kept)

    def look_up(self, said: Called, size: int) -> ToolInvocation | bytes:
        """Return the tool to run, or what to send because there is none or it may not be."""
        start_s = self._clock()
        self._count += 1
        if self._count > self._limits.tool_calls:
            return refusal(
                said, f"RuntimeError: One run may call {self._limits.tool_calls} tools, and did."
            )
        tool = self._tools.find(said.name)
        if tool is None:
            return self._refuse(said, size, start_s, self._tools.missing(said.name))
        try:
            args, kwargs = tool.bind(said.args, said.kwargs)
        except ArgumentsError as error:
            return self._refuse(said, size, start_s, str(error))
        return ToolInvocation(said, tool, args, kwargs, size, start_s)

    def _refuse(self, said: Called, size: int, start_s: float, why: str) -> bytes:
        text, name = _sayable(why), said.name[:_NAME_CHARACTERS]
        self._keep(name, (tuple(said.args), said.kwargs), size, start_s, error=text)
        return refusal(said, text)

    def answer(self, wanted: ToolInvocation, value: Any) -> bytes:
        """Return what to send now that a tool returned; an error, if it is not plain data."""
        name = wanted.tool.name
        try:
            frame = encode(ToolAnswer(wanted.call, ok=True, value=pack(value, name=f"{name}()")))
        except PlainDataError as error:
            if inspect.iscoroutine(value):
                value.close()
            return self.fail(wanted, f"TypeError: {error}")
        except Exception as error:  # noqa: BLE001 - such as a list that another thread changes
            return self.fail(wanted, described(error))
        size = len(frame) - HEADER_BYTES
        if size > self._limits.message_bytes:
            return self.fail(wanted, f"ValueError: {name}() returned more than fits one message.")
        self._keep(name, wanted.given, wanted.size + size, wanted.start_s, value=value)
        return frame

    def fail(self, wanted: ToolInvocation, why: str) -> bytes:
        """Return what to send now that a tool failed."""
        text = _sayable(why)
        self._keep(wanted.tool.name, wanted.given, wanted.size, wanted.start_s, error=text)
        return encode(ToolAnswer(wanted.call, ok=False, value=text))

    def _keep(
        self,
        name: str,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        size: int,
        start_s: float,
        *,
        value: Any = None,
        error: str | None = None,
    ) -> None:
        self._left_bytes -= size
        if self._left_bytes < 0:
            given, value = _NOTHING, None
        self._kept.append(ToolCall(name, given, value, error, self._clock() - start_s))


def refusal(said: Called, why: str) -> bytes:
    """Return what to send to code whose call is not carried out."""
    return encode(ToolAnswer(said.call, ok=False, value=why))


def _sayable(text: str) -> str:
    """Return text that UTF-8 can say."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
