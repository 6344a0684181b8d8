"""Calls of tools on the host, for agents that name a tool and its arguments and write no code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envweave.tools.tool import Tool
from envweave.tools.values import as_data

_TEXT_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of a call.

    Attributes:
        value: What the tool returned, with dicts in the place of dataclasses; if it failed, why,
            on one line.
        is_error: Whether it failed.
    """

    value: Any = None
    is_error: bool = False


def failed(error: BaseException) -> ToolOutcome:
    """Return the outcome of a call that ended with this exception."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an author's __str__ may do anything
        text = "its message cannot be shown"
    return ToolOutcome(f"{name}: {text}"[:_TEXT_LIMIT] if text else name, is_error=True)


async def call_tool(tool: Tool, arguments: Any, admit: Callable[[Tool], None]) -> ToolOutcome:
    """Run a tool with arguments as JSON has them: here if it is `async`, else in a thread.

    It raises nothing but what cancels the caller.
    """
    try:
        if not isinstance(arguments, Mapping) or not all(isinstance(one, str) for one in arguments):
            raise TypeError(f"{tool.name}() takes its arguments by name, as an object.")
        args, kwargs = tool.arguments.read_named(arguments)
        admit(tool)
        if tool.is_async:
            return ToolOutcome(as_data(await tool.function(*args, **kwargs)))
        return await asyncio.to_thread(_run, tool, args, kwargs)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may do anything
        return failed(error)


def _run(tool: Tool, args: Any, kwargs: Any) -> ToolOutcome:
    """Run a tool. Some exceptions would do more to a thread's caller than to be raised there."""
    try:
        return ToolOutcome(as_data(tool.function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001 - a tool may do anything
        return failed(error)
