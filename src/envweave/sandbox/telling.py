"""Turns what a session says of a run into the result that its caller gets."""

from __future__ import annotations

from envweave.sandbox.limits import Limits
from envweave.sandbox.messages import Failure, Finished
from envweave.sandbox.results import ExecutionResult, Limit, ToolCall

_SLACK_BYTES = 512
"""A session adds to cut output how much was lost."""

_TYPE_CHARACTERS = 200
_TEXT_BYTES = 64 << 10
"""How long what is said of a value or an exception may be. A session keeps to less."""

_NO_SPACE = ("[Errno 27]", "[Errno 28]", "[Errno 122]")


def result_of(
    said: Finished,
    limits: Limits,
    duration_s: float,
    tool_calls: tuple[ToolCall, ...],
    *,
    is_late: bool,
    is_hurried: bool,
    overcalled: bool,
    worked_on: bool,
) -> ExecutionResult:
    """Return the result of a run. Texts longer than the limits allow are cut here too."""
    most = limits.output_bytes + _SLACK_BYTES
    failure = said.failure
    stdout, stderr = _cut(said.stdout, most), _cut(said.stderr, most)
    is_cut = said.cut or len(stdout) < len(said.stdout) or len(stderr) < len(said.stderr)
    limits_hit: list[Limit] = ["time"] if is_late else []
    if failure is not None:
        limits_hit += _limits_of(failure)
        if is_hurried and said.interrupted:
            failure = Failure("Interrupted", "The caller interrupted the code.", failure.traceback)
    if is_cut:
        limits_hit.append("output")
    if overcalled:
        limits_hit.append("tool_calls")
    if worked_on:
        limits_hit.append("idle")
    return ExecutionResult(
        success=failure is None,
        stdout=stdout,
        stderr=stderr,
        return_value=said.value if said.plain and failure is None else None,
        return_repr=None if said.shown is None else _cut(said.shown, _TEXT_BYTES),
        exception_type=None if failure is None else failure.type[:_TYPE_CHARACTERS],
        exception_message=None if failure is None else _cut(failure.message, _TEXT_BYTES),
        traceback=None if failure is None else _cut(failure.traceback, _TEXT_BYTES),
        duration_s=duration_s,
        limits_hit=tuple(limits_hit),
        tool_calls=tool_calls,
    )


def is_plain_success(said: Finished, limits: Limits) -> bool:
    """Whether all that was said can be taken as it is: the quick way, which most runs go."""
    shown = said.shown
    length = len(said.stdout) + len(said.stderr) + (0 if shown is None else len(shown))
    return said.failure is None and not said.cut and 4 * length <= limits.output_bytes


def unsaid(kind: str, message: str, limits_hit: tuple[Limit, ...]) -> ExecutionResult:
    """Return the result of code that could not be sent. The session is unharmed."""
    return ExecutionResult(
        success=False, exception_type=kind, exception_message=message, limits_hit=limits_hit
    )


def _limits_of(failure: Failure) -> list[Limit]:
    """Return the limit that an exception tells of."""
    if failure.type == "MemoryError":
        return ["memory"]
    if failure.type == "OSError" and failure.message.startswith(_NO_SPACE):
        return ["disk"]
    return []


def _cut(text: str, most: int) -> str:
    if len(text) * 4 <= most:
        return text
    data = text.encode()
    return text if len(data) <= most else data[:most].decode(errors="ignore")
