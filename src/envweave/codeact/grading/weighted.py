"""`Weighted`: the weighted average of several graders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from envweave.codeact.grading.base import Attempt, Grade, Grader
from envweave.errors import OptionError
from envweave.types import Task


@final
class Weighted(Grader):
    """Averages the scores of several graders by weight; weights need not add up to 1.

    An attempt passes if every grader passes it. If one grader fails to grade it, so does this one.

    Args:
        weights: The weight of each grader.

    Raises:
        OptionError: There are no graders, or a weight is not above 0.
    """

    def __init__(self, weights: Mapping[Grader, float]) -> None:
        if not weights:
            raise OptionError("Weighted({}): expected graders and their weights.")
        for grader, weight in weights.items():
            if not isinstance(grader, Grader):
                raise OptionError(f"Weighted: the keys must be graders, got {grader!r}.")
            if isinstance(weight, bool) or not 0 < weight < math.inf:
                raise OptionError(f"Weighted: a weight must be a number above 0, got {weight!r}.")
        self._weights = dict(weights)

    def __repr__(self) -> str:
        return f"<Weighted: {', '.join(map(repr, self._weights))}>"

    def check_task(self, task: Task) -> None:
        """Have each grader check it."""
        for grader in self._weights:
            grader.check_task(task)

    async def grade(self, attempt: Attempt) -> Grade:
        """Ask each grader in turn."""
        total = math.fsum(self._weights.values())
        scores, parts = [], []
        for grader, weight in self._weights.items():
            grade = await grader.grade(attempt)
            scores.append(grade.score * weight / total)
            parts.append(
                {
                    "grader": type(grader).__name__,
                    **grade.details,
                    "score": grade.score,
                    "passed": grade.passed,
                }
            )
        passed = all(part["passed"] for part in parts)
        return Grade(min(math.fsum(scores), 1.0), passed, {"parts": parts})

    async def close(self) -> None:
        """Close each grader."""
        for grader in self._weights:
            await grader.close()
