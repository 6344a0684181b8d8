"""The limits of a session."""

from __future__ import annotations

from dataclasses import dataclass, fields

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
        for field in fields(self):
            value = getattr(self, field.name)
            seconds = field.name.endswith("_s")
            kinds = (int, float) if seconds else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds):
                expected = "a number of seconds" if seconds else "an integer"
                raise OptionError(f"Limits({field.name}={value!r}): expected {expected}.")
            low, high = _MIN.get(field.name, 1), _MAX.get(field.name, 1 << 62)
            if not low <= value <= high:
                raise OptionError(
                    f"Limits({field.name}={value!r}): expected at least {low}, at most {high}."
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
