"""Graders: they judge what an agent hands in, on the host.

What code says of itself counts for nothing. An answer crosses the walls as plain data and is
compared here; a program is run again, in sessions that the agent never had.
"""

from __future__ import annotations

from envweave.codeact.grading.hidden_tests import HiddenTests
from envweave.codeact.grading.judge import Judge
from envweave.codeact.grading.matching import ExactMatch, NumericMatch, RegexMatch
from envweave.codeact.grading.weighted import Weighted

__all__ = ["ExactMatch", "HiddenTests", "Judge", "NumericMatch", "RegexMatch", "Weighted"]
