"""Matches a pattern in a process of its own, which can be ended: a match itself cannot.

A pattern that backtracks may take for ever on a text that was written to that end. While it does,
no other thread of its process runs.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys

from envweave.codeact.attempts import GradingError

_STUCK_S = 60.0
"""How long the process may take by the clock on the wall, on however busy a machine."""

# The time that counts is the process's own: a busy machine makes no answer wrong.
_CHILD = """
import json, re, signal, sys
pattern, flags, text, full, seconds = json.load(sys.stdin)
search = re.compile(pattern, flags)
signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
print("yes" if (search.fullmatch if full else search.search)(text) else "no")
"""


def matches(pattern: str, flags: int, text: str, *, full: bool, timeout_s: float) -> bool | None:
    """Return whether a text matches, or `None` if finding out takes longer than it may.

    Blocks.

    Raises:
        GradingError: The process could not be started, or did not answer.
    """
    question = json.dumps([pattern, flags, text, full, timeout_s])
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, and no text of anybody's
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=question,
            capture_output=True,
            text=True,
            timeout=math.ceil(timeout_s) + _STUCK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GradingError(f"A pattern could not be matched: {type(error).__name__}.") from error
    if done.returncode == -signal.SIGVTALRM:
        return None
    if done.returncode != 0:
        raise GradingError(f"A pattern could not be matched: status {done.returncode}.")
    return done.stdout.strip() == "yes"
