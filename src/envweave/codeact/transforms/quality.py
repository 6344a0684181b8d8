"""`CodeQualityTransform`: a small reward for well-written code."""

from __future__ import annotations

import ast
from typing import final

from envweave.codeact.models import CodeObservation
from envweave.codeact.transforms.checks import read_part, read_step
from envweave.codeact.transforms.static_analysis import MOST_CHARACTERS
from envweave.transforms import Transform
from envweave.types import Observation

CONCISE_LINES = 30
CONCISE_COLUMNS = 100
LONG_LINES = 100

TRAIT_REWARDS = {
    "failed": -0.1,
    "long": -0.05,
    "swallows": -0.05,
    "concise": 0.05,
    "documented": 0.05,
}
"""The reward of each trait of a step's code; the sum is between -0.2 and 0.1."""

_NAME = "CodeQualityTransform"
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@final
class CodeQualityTransform(Transform):
    """Adds a small reward for how a step's code is written and ran.

    | Trait | Reward | Code that |
    | --- | --- | --- |
    | `failed` | -0.1 | raised, does not parse, or hit a limit that ended it |
    | `long` | -0.05 | has more than 100 lines |
    | `swallows` | -0.05 | has a bare `except:`, or a handler that only passes |
    | `concise` | +0.05 | succeeded, in at most 30 lines of at most 100 characters |
    | `documented` | +0.05 | succeeded, and documents each function and class it defines |

    Blank lines and comment lines are not counted.
    `observation.metadata["code_quality"]` lists the traits that were found.

    Args:
        part: The name of this part of the reward.

    Raises:
        OptionError: `part` is not a non-empty string.
    """

    def __init__(self, *, part: str = "quality") -> None:
        self._part = read_part(_NAME, part)

    def __call__(self, observation: Observation) -> Observation:
        """Add the part. The first observation of an episode is unchanged."""
        step = read_step(observation, _NAME)
        if step is None:
            return observation
        traits = _traits(step)
        step.add_reward(self._part, round(sum(TRAIT_REWARDS[trait] for trait in traits), 2))
        step.metadata["code_quality"] = traits
        return step


def _traits(step: CodeObservation) -> list[str]:
    lines = [line for line in step.code.splitlines() if line.strip()[:1] not in ("", "#")]
    works = step.execution_result.success
    tree = _parse(step.code)
    found = {
        "failed": not works,
        "long": len(lines) > LONG_LINES,
        "swallows": tree is not None and _swallows(tree),
        "concise": works
        and 0 < len(lines) <= CONCISE_LINES
        and max(map(len, lines)) <= CONCISE_COLUMNS,
        "documented": works and tree is not None and _is_documented(tree),
    }
    return [trait for trait, is_found in found.items() if is_found]


def _parse(code: str) -> ast.Module | None:
    if len(code) > MOST_CHARACTERS:
        return None
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _swallows(tree: ast.Module) -> bool:
    return any(
        node.type is None or all(isinstance(one, ast.Pass) for one in node.body)
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
    )


def _is_documented(tree: ast.Module) -> bool:
    defined = [node for node in ast.walk(tree) if isinstance(node, _Documented)]
    return bool(defined) and all(ast.get_docstring(node, clean=False) for node in defined)
