"""The execution of code in a session: its limits, and its results."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from envweave.errors import OptionError

MEGABYTE = 1 << 20
LONGEST_S = 1e9
"""The longest time limit, some thirty years: practically none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one session may use.

    Attributes:
        timeout_s: How long one `run` may take; `run(timeout_s=…)` overrides it. Code that runs
            longer is interrupted, and keeps its variables.
        grace_s: How long interrupted code may take to end before its session is killed.
        memory_bytes: Memory of one process of the session.
        disk_bytes: Size of its work folder.
        files: How many files and folders the work folder may contain.
        open_files: How many files it may have open at once.
        processes: How many threads, and with `profile="shell"` processes, it may have at once.
        output_bytes: How much of each of stdout and stderr one `run` returns; the rest is cut.
        message_bytes: The largest value, file or piece of code in one message.
        tool_calls: How many tool calls one `run` may make.
    """

    timeout_s: float = 5.0
    grace_s: float = 0.5
    memory_bytes: int = 512 * MEGABYTE
    disk_bytes: int = 64 * MEGABYTE
    files: int = 4096
    open_files: int = 64
    processes: int = 64
    output_bytes: int = 64 << 10
    message_bytes: int = 16 * MEGABYTE
    tool_calls: int = 1000

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            seconds = one.name.endswith("_s")
            kinds = (int, float) if seconds else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds):
                expected = "a number of seconds" if seconds else "an integer"
                raise OptionError(f"Limits({one.name}={value!r}): expected {expected}.")
            low, high = _MIN.get(one.name, 1), _MAX.get(one.name, 1 << 62)
            if not low <= value <= high:
                raise OptionError(
                    f"Limits({one.name}={value!r}): expected at least {low}, at most {high}."
                )


_MIN: dict[str, float] = {
    "timeout_s": 0.001,
    "grace_s": 0.0,
    "memory_bytes": 64 * MEGABYTE,
    "disk_bytes": 64 << 10,
    "files": 8,
    "open_files": 16,
    "output_bytes": 256,
    "message_bytes": 64 << 10,
    "tool_calls": 0,
}
_MAX: dict[str, float] = {
    "timeout_s": LONGEST_S,
    "grace_s": LONGEST_S,
    "message_bytes": 1 << 30,
}


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
