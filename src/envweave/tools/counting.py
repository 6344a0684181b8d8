"""How often the tools of an episode were called, and the end of it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import final

from envweave.errors import EnvWeaveError
from envweave.tools.tool import Tool


class CallLimitError(EnvWeaveError, RuntimeError):
    """A tool was called more often than it may be in one episode. It did not run."""


@final
class Ledger:
    """Counts the calls of one episode.

    Args:
        max_calls: How many calls there may be of all tools together; `None` for any number.
    """

    def __init__(self, max_calls: int | None) -> None:
        self._max_calls = max_calls
        self._lock = threading.Lock()  # protects the counts: code may call from several threads
        self._counts: Counter[str] = Counter()

    def admit(self, tool: Tool) -> None:
        """Count a call that is about to run.

        Raises:
            CallLimitError: There were as many as there may be.
        """
        with self._lock:
            if tool.max_calls is not None and self._counts[tool.name] >= tool.max_calls:
                raise CallLimitError(
                    f"{tool.name}() may be called {_times(tool.max_calls)} in an episode, and was."
                )
            if self._max_calls is not None and self._counts.total() >= self._max_calls:
                raise CallLimitError(
                    f"Tools may be called {_times(self._max_calls)} in an episode, and were."
                )
            self._counts[tool.name] += 1


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
