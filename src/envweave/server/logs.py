"""The log of a server process: text, or one JSON object per line."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, final

import msgspec

LOGGERS = ("envweave", "uvicorn")
"""The loggers whose records are shown."""

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "color_message",
}


logger = logging.getLogger("envweave.server")


@final
class SessionLog:
    """Logs opened and closed sessions and failed calls, as an observer of the session table."""

    def called(self, method: str, code: str, seconds: float, count: int = 1) -> None:
        """Log calls that failed or were refused."""
        if code != "ok":
            extra = {"method": method, "code": code, "duration_s": round(seconds, 6)}
            extra |= {"count": count} if count > 1 else {}
            logger.info("call refused", extra=extra)

    def opened(self) -> None:
        """Log the start of a session."""
        logger.info("session opened")

    def closed(self, reason: str) -> None:
        """Log the end of a session."""
        logger.info("session closed", extra={"reason": reason})


@final
class JSONLines(logging.Formatter):
    """One JSON object per record: `time`, `level`, `logger`, `message` and the `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: one for key, one in vars(record).items() if key not in _STANDARD_FIELDS}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = "".join(traceback.format_exception(*record.exc_info))
        return msgspec.json.encode(line, enc_hook=repr).decode()


@contextlib.contextmanager
def logged(*, as_json: bool = False, level: int = logging.INFO) -> Iterator[None]:
    """Print the log of a server on stderr while it runs."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JSONLines() if as_json else plain)
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in LOGGERS]
    propagated = [logger.propagate for logger, _ in before]
    for logger, _ in before:
        # The server prints its own line on start and stop, in place of uvicorn's.
        logger.setLevel(max(level, logging.WARNING) if logger.name == "uvicorn" else level)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for (logger, was), propagate in zip(before, propagated, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(was)
            logger.propagate = propagate
