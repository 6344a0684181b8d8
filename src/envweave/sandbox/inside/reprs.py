"""Text representations of values and exceptions, whatever their methods do.

Those methods belong to the code: they run under its time limit, and may raise, print, recurse or
return a gigabyte. `TimeLimit` passes through where it can; any other exception becomes text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath
from traceback import StackSummary, TracebackException
from types import TracebackType
from typing import Any

from envweave.sandbox.inside.cells import CELL
from envweave.sandbox.inside.interrupts import TimeLimit
from envweave.sandbox.protocol.encoding import OWN
from envweave.sandbox.protocol.messages import Failure

__builtins__ = OWN

TEXT_BYTES = 16 << 10
"""The longest `repr`, message or traceback."""

_MAX_ITEMS = TEXT_BYTES // 3 + 1  # an item and its comma take at least three characters
_FRAMES = 100
_OURS = str(PurePath(__file__).parent)
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
_traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__[
    "__traceback__"
].__get__
_Traceback = TracebackException


def show_value(value: Any) -> str:
    """Return the `repr` of a value, shortened."""
    kind = type(value)
    if kind is int or kind is float or kind is bool:
        try:
            return repr(value)
        except ValueError as error:  # too many digits
            return f"<an int that cannot be shown: {error}>"
    try:
        if (kind is list or kind is tuple) and len(value) > _MAX_ITEMS:
            value = value[:_MAX_ITEMS]
        elif (kind is str or kind is bytes) and len(value) > TEXT_BYTES:
            value = value[:TEXT_BYTES]
        return _shorten(_exact(repr(value)))
    except TimeLimit:
        raise
    except BaseException as error:  # noqa: BLE001 - the code may raise anything
        return f"<{_clean(_name_of(kind))} object, whose repr raised {_describe(error)}>"


def show_failure(error: BaseException) -> Failure:
    """Return an exception as text, with causes, notes and groups, without our own frames."""
    name = _clean(_name_of(type(error)))
    message = _message(error)
    try:
        text = "".join(_lines(error))
    except TimeLimit:
        raise
    except BaseException:  # noqa: BLE001 - the code may have broken what formats it
        text = _plain_traceback(error, name, message)
    return Failure(name, message, _shorten(text, keep_end=True))


def show_briefly(error: BaseException) -> Failure:
    """Return an exception as text without calling any of its methods."""
    name = _clean(_name_of(type(error)))
    message = str(error) if type(error) is TimeLimit else ""
    return Failure(name, message, _clean(_plain_traceback(error, name, message)))


def _lines(error: BaseException) -> Iterator[str]:
    shown = _Traceback(type(error), error, _traceback_of(error), limit=-_FRAMES, compact=True)
    _remove_own_frames(shown)
    return shown.format()


def _remove_own_frames(shown: TracebackException) -> None:
    pending = [shown]
    while pending:
        one = pending.pop()
        frames = list(one.stack or ())
        cells = [i for i, frame in enumerate(frames) if frame.filename.startswith(CELL)]
        if cells and frames[0].filename.startswith(_OURS):
            del frames[: cells[0]]  # our own, and those of the event loop that we run
        kept = [frame for frame in frames if not frame.filename.startswith(_OURS)]
        # A syntax error has no frames, and so no heading either.
        one.stack = StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]
        pending += [other for other in (one.__cause__, one.__context__) if other is not None]
        pending += one.exceptions or ()


def _plain_traceback(error: BaseException, name: str, message: str) -> str:
    lines = ["Traceback (most recent call last):\n"]
    entry = _traceback_of(error)
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(_OURS):
            lines.append(
                f'  File "{code.co_filename}", line {entry.tb_lineno}, in {code.co_name}\n'
            )
        entry = entry.tb_next
    lines = lines[:1] + lines[1:][-_FRAMES:]
    lines.append(f"{name}: {message}\n" if message else f"{name}\n")
    return "".join(lines)


def _message(error: BaseException) -> str:
    try:
        return _shorten(_exact(str(error)))
    except TimeLimit:
        raise
    except BaseException as second:  # noqa: BLE001 - the code may raise anything
        return f"<its str() raised {_clean(_name_of(type(second)))}>"


def _describe(error: BaseException) -> str:
    name = _clean(_name_of(type(error)))
    message = _message(error)
    return f"{name}: {message}" if message else name


def _exact(text: Any) -> str:
    return str.__str__(text)


def _clean(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _shorten(text: str, *, keep_end: bool = False) -> str:
    if len(text) <= TEXT_BYTES // 4:
        return _clean(text)
    if len(text) > 4 * TEXT_BYTES:  # without copying all of a gigabyte
        text = text[: 2 * TEXT_BYTES] + text[-2 * TEXT_BYTES :]
        is_cut = True
    else:
        is_cut = False
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= TEXT_BYTES and not is_cut:
        return data.decode("utf-8")
    if keep_end:
        head, tail = data[: TEXT_BYTES // 4], data[-(TEXT_BYTES // 2) :]
        return f"{head.decode('utf-8', 'ignore')}\n... [cut]\n{tail.decode('utf-8', 'ignore')}"
    return data[: TEXT_BYTES - 16].decode("utf-8", "ignore") + "... [cut]"
