"""`Weighted`: several graders, and what each of them counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from envweave.codeact.grading.base import Attempt, Grade, Grader
from envweave.errors import OptionError
from envweave.types import Task


@final
class Weighted(Grader):
    """Adds up the scores of several graders, each by its weight; weights need not add up to 1.

    An attempt passes if every grader passes it. If one cannot judge it, nobody has.

    Args:
        weights: How much each grader counts.

    Raises:
        OptionError: There is none, or what stands there is no grader or no weight above 0.
    """

    def __init__(self, weights: Mapping[Grader, float]) -> None:
        if not weights:
            raise OptionError("Weighted({}): expected graders and their weights.")
        for grader, weight in weights.items():
            if not isinstance(grader, Grader):
                raise OptionError(f"Weighted: {grader!r} is no grader.")
            if isinstance(weight, bool) or not 0 < weight < math.inf:
                raise OptionError(f"Weighted: {weight!r} is no weight; expected one above 0.")
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
