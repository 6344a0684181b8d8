"""What a run of code came to."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

Limit = Literal["time", "memory", "disk", "output", "message", "tool_calls", "idle"]
"""The limits that a result names: see `Limits`. `idle` says that the session worked on after the
run before, while no run was open, and was stopped until this one."""


def _shown(record: Any) -> str:
    """Return the `repr` of a dataclass, whatever the code put into it.

    Python refuses to show an int of many digits. Code must not be able to stop whoever logs.
    """
    parts = [f"{one.name}={_part(getattr(record, one.name))}" for one in fields(record)]
    return f"{type(record).__name__}({', '.join(parts)})"


def _part(value: Any) -> str:
    try:
        return repr(value)
    except ValueError as error:
        return f"<{type(value).__name__} that cannot be shown: {error}>"


@dataclass(frozen=True, slots=True, repr=False)
class ToolCall:
    """One call of a tool by the code, as the host saw it.

    Attributes:
        name: What the code called, whether or not there is such a tool.
        arguments: The positional arguments, then those by keyword. Of what the tools of one run
            were given and gave, a megabyte is kept; calls beyond that have neither.
        value: What the tool returned; `None` if it failed.
        error: Why it failed; `None` if it did not.
        duration_s: How long it took; two calls are equal whatever it is.
    """

    name: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    value: Any = None
    error: str | None = None
    duration_s: float = field(default=0.0, compare=False)

    __repr__ = _shown


@dataclass(slots=True, kw_only=True, repr=False)
class ExecutionResult:
    """What one `run` came to.

    All but `duration_s`, `session_ended`, `tool_calls` and the limits "time" and "idle" is the word
    of the code that ran: whoever can run code can also lie about it.

    Attributes:
        success: Whether the code came to its end without an exception.
        stdout: What it printed, up to the limit.
        stderr: What it wrote there, warnings included, up to the limit.
        return_value: The value of the last expression as plain data: numbers, text, bytes,
            `None`, lists, tuples, sets, dicts, numpy arrays. `None` where it has no such form.
        return_repr: The `repr` of that value, shortened; `None` if the code does not end in an
            expression or its value is `None`.
        exception_type: The name of the exception's class; `None` on success.
        exception_message: What the exception says.
        traceback: The traceback as text, without frames of the sandbox.
        duration_s: How long the caller waited; two results are equal whatever it is.
        limits_hit: The limits that the code ran into, or none. Also those that it passed after the
            run before had ended.
        session_ended: Whether the session is gone: its variables and files with it.
        tool_calls: The tools that the code called, in order.
    """

    success: bool
    stdout: str = ""
    stderr: str = ""
    return_value: Any = None
    return_repr: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    traceback: str | None = None
    duration_s: float = field(default=0.0, compare=False)
    limits_hit: tuple[Limit, ...] = ()
    session_ended: bool = False
    tool_calls: tuple[ToolCall, ...] = field(default=())

    __repr__ = _shown
