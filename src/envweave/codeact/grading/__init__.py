"""Graders score what an agent submits, on the host.

They trust nothing that the code reports about itself. An answer leaves the sandbox as plain data
and is compared here; a program is run again, in fresh sessions.
"""

from __future__ import annotations

from envweave.codeact.grading.base import Weighted
from envweave.codeact.grading.hidden_tests import HiddenTests
from envweave.codeact.grading.judge import Judge
from envweave.codeact.grading.matching import ExactMatch, NumericMatch, RegexMatch

__all__ = ["ExactMatch", "HiddenTests", "Judge", "NumericMatch", "RegexMatch", "Weighted"]
