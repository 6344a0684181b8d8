"""Tracebacks of code that ran in this process, without the frames that are ours."""

from __future__ import annotations

from pathlib import PurePath
from types import TracebackType

from envweave.sandbox.inside.cells import CELL

_OURS = str(PurePath(__file__).parent)


def leave_out_ours(error: BaseException) -> None:
    """Take our frames out of an exception's traceback, and of those behind it."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_ours(entry: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    starts_with_us = entry is not None and is_ours(entry)
    while entry is not None:
        if starts_with_us and entry.tb_frame.f_code.co_filename.startswith(CELL):
            entries.clear()  # those of an event loop that we run
            starts_with_us = False
        if not is_ours(entry):
            entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def is_ours(entry: TracebackType) -> bool:
    """Whether a frame runs what stands beside this file."""
    return entry.tb_frame.f_code.co_filename.startswith(_OURS)
