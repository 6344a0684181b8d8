"""Logs failed episodes: equal failures within a while are one record, with their number.

When a worker or a server is lost, so are all its episodes, for the same reason.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import final

WINDOW_S = 5.0
"""For how long a failure that was logged is not logged again."""

_MOST = 1_000


@final
class LossLog:
    """Remembers which failures were logged lately. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while the table is read and changed
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def warn(
        self, logger: logging.Logger, name: str, cause: object, error: BaseException | None = None
    ) -> None:
        """Log that an episode of `name` ended by a failure, unless an equal one was just logged.

        Args:
            logger: Where to log it.
            name: The environment.
            cause: Why it ended.
            error: What was raised, to log its traceback.
        """
        key, now = (name, str(cause)), time.monotonic()
        with self._lock:
            until, unlogged = self._logged.get(key, (0.0, 0))
            if now < until:
                self._logged[key] = (until, unlogged + 1)
                return
            if len(self._logged) >= _MOST:
                self._logged.clear()
            self._logged[key] = (now + WINDOW_S, 0)
        more = f" ({unlogged:,} equal ones before it were not logged)" if unlogged else ""
        logger.warning("an episode of %s ended: %s%s", name, cause, more, exc_info=error)

    def clear(self) -> None:
        """Forget what was logged."""
        with self._lock:
            self._logged.clear()


LOSSES_LOGGED = LossLog()
"""The log of this process."""
