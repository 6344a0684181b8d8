"""Observations of steps of code, as an environment would show them, without running any."""

from __future__ import annotations

from typing import Any

from envweave.codeact.models import CodeObservation
from envweave.sandbox.results import ExecutionResult

UNSAFE = "import os\n42"
SAFE = "21 * 2"


def step(code: str = SAFE, value: Any = 42, *, reward: float | None = None, **result: Any) -> Any:
    """Return the observation of a step that came to `value`, unless `result` says otherwise."""
    told = {"success": True, "return_value": value, "duration_s": 0.01, **result}
    if value is not None:
        told.setdefault("return_repr", "…")
    return CodeObservation(code=code, reward=reward, execution_result=ExecutionResult(**told))


def failed_step(code: str = "1 / 0") -> Any:
    """Return the observation of a step whose code raised."""
    return step(code, None, success=False, exception_type="ZeroDivisionError")


def parts_of(observation: Any) -> dict[str, float]:
    """Return the parts of its reward."""
    parts: dict[str, float] = observation.metadata["reward_parts"]
    return parts
