"""Agents that act by writing code: executors that run it, transforms and graders that score it.

The environment itself is at the root: `create_codeact_env`, `CodeAction`, the transforms.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envweave.codeact.executors.base import Executor as Executor
    from envweave.codeact.executors.docker.executor import DockerExecutor as DockerExecutor
    from envweave.codeact.grading import ExactMatch as ExactMatch
    from envweave.codeact.grading import HiddenTests as HiddenTests
    from envweave.codeact.grading import Judge as Judge
    from envweave.codeact.grading import NumericMatch as NumericMatch
    from envweave.codeact.grading import RegexMatch as RegexMatch
    from envweave.codeact.grading import Weighted as Weighted
    from envweave.codeact.grading.base import Attempt as Attempt
    from envweave.codeact.grading.base import Grade as Grade
    from envweave.codeact.grading.base import Grader as Grader
    from envweave.codeact.grading.base import GradingError as GradingError
    from envweave.codeact.models import Variable as Variable

_MODULES = {
    "Attempt": "grading.base",
    "DockerExecutor": "executors.docker.executor",
    "ExactMatch": "grading",
    "Executor": "executors.base",
    "Grade": "grading.base",
    "Grader": "grading.base",
    "GradingError": "grading.base",
    "HiddenTests": "grading",
    "Judge": "grading",
    "NumericMatch": "grading",
    "RegexMatch": "grading",
    "Variable": "models",
    "Weighted": "grading",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
