"""Looks up, checks and counts the tools that code calls, and records the outcome of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, final

from envweave.errors import PlainDataError
from envweave.sandbox.execution import Limits, ToolCall
from envweave.sandbox.protocol.encoding import encode, pack
from envweave.sandbox.protocol.messages import HEADER_BYTES, Called, ToolAnswer
from envweave.sandbox.tools import ArgumentsError, SandboxTool, SandboxTools, describe_error

LATE = "TimeoutError: The time limit of the run passed while the tool ran."
"""The error that code gets when a tool is still running at the time limit."""

_RECORDED_BYTES = 1 << 20
_NAME_CHARACTERS = 100
_NOTHING: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


@final
class ToolInvocation:
    """A call of a tool with checked arguments: run it, then answer."""

    __slots__ = ("args", "arguments", "call", "kwargs", "size", "start_s", "tool")

    def __init__(
        self, message: Called, tool: SandboxTool, args: Any, kwargs: Any, size: int, start_s: float
    ) -> None:
        self.call = message.call
        self.arguments = (tuple(message.args), message.kwargs)
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

    Arguments and return values are recorded for the result, up to a megabyte in all; calls beyond
    that are recorded without them. A thousand of the largest would exhaust the host's memory.
    """

    def __init__(self, limits: Limits, tools: SandboxTools, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._tools = tools
        self._clock = clock
        self._count = 0
        self._recorded: list[ToolCall] = []
        self._left_bytes = _RECORDED_BYTES

    def reset(self) -> None:
        """Begin a new run."""
        if self._count:
            self._count = 0
            self._recorded = []
            self._left_bytes = _RECORDED_BYTES

    @property
    def is_over_limit(self) -> bool:
        """Whether the code made more tool calls than allowed."""
        return self._count > self._limits.tool_calls

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the tools that the code called, in order."""
        return tuple(self._recorded)

    def look_up(self, message: Called, size: int) -> ToolInvocation | bytes:
        """Return the tool call to run, or the frame that refuses it."""
        start_s = self._clock()
        self._count += 1
        if self._count > self._limits.tool_calls:
            return refusal(
                message,
                f"RuntimeError: A run may make at most {self._limits.tool_calls} tool calls.",
            )
        tool = self._tools.find(message.name)
        if tool is None:
            return self._refuse(message, size, start_s, self._tools.missing(message.name))
        try:
            args, kwargs = tool.bind(message.args, message.kwargs)
        except ArgumentsError as error:
            return self._refuse(message, size, start_s, str(error))
        return ToolInvocation(message, tool, args, kwargs, size, start_s)

    def _refuse(self, message: Called, size: int, start_s: float, why: str) -> bytes:
        text, name = _encodable(why), message.name[:_NAME_CHARACTERS]
        self._record(name, (tuple(message.args), message.kwargs), size, start_s, error=text)
        return refusal(message, text)

    def answer(self, invocation: ToolInvocation, value: Any) -> bytes:
        """Return the frame for what a tool returned; an error, if it is not plain data."""
        name = invocation.tool.name
        try:
            frame = encode(
                ToolAnswer(invocation.call, ok=True, value=pack(value, name=f"{name}()"))
            )
        except PlainDataError as error:
            if inspect.iscoroutine(value):
                value.close()
            return self.fail(invocation, f"TypeError: {error}")
        except Exception as error:  # noqa: BLE001 - such as a list that another thread changes
            return self.fail(invocation, describe_error(error))
        size = len(frame) - HEADER_BYTES
        if size > self._limits.message_bytes:
            return self.fail(
                invocation, f"ValueError: {name}() returned more than one message holds."
            )
        self._record(
            name, invocation.arguments, invocation.size + size, invocation.start_s, value=value
        )
        return frame

    def fail(self, invocation: ToolInvocation, why: str) -> bytes:
        """Return the frame for a tool that failed."""
        text = _encodable(why)
        self._record(
            invocation.tool.name,
            invocation.arguments,
            invocation.size,
            invocation.start_s,
            error=text,
        )
        return encode(ToolAnswer(invocation.call, ok=False, value=text))

    def _record(
        self,
        name: str,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        size: int,
        start_s: float,
        *,
        value: Any = None,
        error: str | None = None,
    ) -> None:
        self._left_bytes -= size
        if self._left_bytes < 0:
            arguments, value = _NOTHING, None
        self._recorded.append(ToolCall(name, arguments, value, error, self._clock() - start_s))


def refusal(message: Called, why: str) -> bytes:
    """Return the frame that refuses a call."""
    return encode(ToolAnswer(message.call, ok=False, value=why))


def _encodable(text: str) -> str:
    """Return the text with lone surrogates escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
