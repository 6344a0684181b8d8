"""Attempts made up for a test, and what a grader says to them."""

from __future__ import annotations

import asyncio
from typing import Any

from envweave.codeact import Attempt, Grade, Grader
from envweave.sandbox import ExecutionResult
from envweave.types import Task


def attempt(
    answer: Any = None,
    *,
    program: str = "",
    prompt: str | None = None,
    private: dict[str, Any] | None = None,
    **more: Any,
) -> Attempt:
    """Return what an agent might hand in; about a task, if it has a prompt or a private part."""
    is_about = prompt is not None or private is not None
    about = Task("t", data={"prompt": prompt or ""}, private=private or {}) if is_about else None
    result = ExecutionResult(success=True)
    return Attempt(code=program, program=program, result=result, answer=answer, task=about, **more)


def graded(grader: Grader, answer: Any = None, **more: Any) -> Grade:
    """Return the grade of one attempt, with the grader closed."""

    async def ask() -> Grade:
        try:
            return await grader.grade(attempt(answer, **more))
        finally:
            await grader.close()

    return asyncio.run(ask())
