"""The result of a run of code."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

Limit = Literal["time", "memory", "disk", "output", "message", "tool_calls", "idle"]
"""The limits that a result names: see `Limits`. `idle` means that the session used CPU after the
previous run, while no run was open, and was stopped until this one."""


def _safe_repr(record: Any) -> str:
    """Return the `repr` of a dataclass, whatever the code put into it.

    Python refuses the `repr` of an int with many digits. Code must not be able to break logging.
    """
    parts = [f"{one.name}={_value_repr(getattr(record, one.name))}" for one in fields(record)]
    return f"{type(record).__name__}({', '.join(parts)})"


def _value_repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError as error:
        return f"<{type(value).__name__} that cannot be shown: {error}>"


@dataclass(frozen=True, slots=True, repr=False)
class ToolCall:
    """One call of a tool by the code, as the host saw it.

    Attributes:
        name: The name that the code called, whether or not there is such a tool.
        arguments: The positional arguments, then the keyword arguments. Arguments and values of
            one run are recorded up to a megabyte; calls beyond that have neither.
        value: What the tool returned; `None` if it failed.
        error: Why it failed; `None` if it did not.
        duration_s: How long it took; ignored by `==`.
    """

    name: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    value: Any = None
    error: str | None = None
    duration_s: float = field(default=0.0, compare=False)

    __repr__ = _safe_repr


@dataclass(slots=True, kw_only=True, repr=False)
class ExecutionResult:
    """The result of one `run`.

    All but `duration_s`, `session_ended`, `tool_calls` and the limits "time" and "idle" is reported
    by the session, and hostile code can forge it.

    Attributes:
        success: Whether the code finished without an exception.
        stdout: What it printed, up to the limit.
        stderr: What it wrote to stderr, warnings included, up to the limit.
        return_value: The value of the last expression as plain data: numbers, text, bytes,
            `None`, lists, tuples, sets, dicts, numpy arrays. `None` if it is not plain data.
        return_repr: The `repr` of that value, shortened; `None` if the code does not end in an
            expression or its value is `None`.
        exception_type: The name of the exception's class; `None` on success.
        exception_message: The message of the exception.
        traceback: The traceback as text, without frames of the sandbox.
        duration_s: How long the caller waited; ignored by `==`.
        limits_hit: The limits that the code reached; also those that it exceeded after the
            previous run.
        session_ended: Whether the session is gone, with its variables and files.
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

    __repr__ = _safe_repr
