"""Transforms that reward code: for its task, for the right answer, for its quality."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from envweave.codeact.grading.comparison import check_tolerance, is_same, read_expected, read_number
from envweave.codeact.models import CodeObservation
from envweave.codeact.transforms.static_analysis import MOST_CHARACTERS
from envweave.errors import BadReturnError, OptionError
from envweave.transforms import Transform
from envweave.types import Observation


def read_step(observation: Observation, transform: str) -> CodeObservation | None:
    """Return the observation of a step, or `None` for the first observation of an episode.

    The first observation has no code and no duration. A step with empty code has a duration, and
    is a step like any other.

    Raises:
        BadReturnError: It is not a `CodeObservation`.
    """
    if not isinstance(observation, CodeObservation):
        raise BadReturnError(
            f"{transform} is for environments that run code: it needs a CodeObservation, got "
            f"{type(observation).__name__}."
        )
    if not observation.code and not observation.execution_result.duration_s:
        return None
    return observation


def read_reward(transform: str, name: str, given: Any) -> float:
    """Return the reward in an option as a float.

    Raises:
        OptionError: It is not a finite number.
    """
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given):
        raise OptionError(f"{transform}({name}={given!r}): a reward must be a finite number.")
    return float(given)


def read_part(transform: str, given: Any) -> str:
    """Return the name of a part of the reward.

    Raises:
        OptionError: It is not a non-empty string.
    """
    if not isinstance(given, str) or not given:
        raise OptionError(f"{transform}(part={given!r}): part must be a non-empty string.")
    return given


_COMPLETION = "TaskCompletionTransform"


@final
class TaskCompletionTransform(Transform):
    """Sets a part of the reward once a condition holds; 0 while it does not.

    Args:
        is_complete: Returns whether the task is done, given the observation of a step. It runs on
            the host; the observation is plain data, but its content is under the agent's control.
        reward: The reward for the task.
        part: The name of this part of the reward.
        ends: Whether the episode ends then. Otherwise every step at which the task is done earns
            `reward`.

    Raises:
        OptionError: An option is invalid.
    """

    def __init__(
        self,
        is_complete: Callable[[CodeObservation], bool],
        reward: float = 1.0,
        *,
        part: str = "task",
        ends: bool = True,
    ) -> None:
        if not callable(is_complete):
            raise OptionError(
                f"{_COMPLETION}: is_complete must be a function that takes the observation of a "
                f"step and returns a bool, got {is_complete!r}."
            )
        self._is_complete = is_complete
        self._reward = read_reward(_COMPLETION, "reward", reward)
        self._part = read_part(_COMPLETION, part)
        self._ends = ends

    def __call__(self, observation: Observation) -> Observation:
        """Set the part. The first observation of an episode is unchanged."""
        step = read_step(observation, _COMPLETION)
        if step is None:
            return observation
        is_complete: object = self._is_complete(step)
        if not isinstance(is_complete, bool | np.bool_):
            raise BadReturnError(
                f"{_COMPLETION}: {self._is_complete!r} must return a bool, got "
                f"{type(is_complete).__name__}."
            )
        step.set_reward(self._part, self._reward if is_complete else 0.0)
        step.done = step.done or (bool(is_complete) and self._ends)
        return step


_MATH = "MathProblemTransform"


@final
class MathProblemTransform(Transform):
    """Sets a part of the reward by whether the value of the code is the expected answer.

    The answer stays on the host: it is in no observation, in no `repr` and in no session. The value
    of the code is compared with it as plain data (see
    `envweave.codeact.grading.comparison.is_same`). Code that raised, or was ended by a limit, is
    wrong whatever its value.

    Args:
        expected_answer: A number, text or an array, or lists and dicts of those.
        right: The reward for the right answer.
        wrong: The reward for any other.
        tolerance: How far a number may be off, relative to the expected one or, below 1,
            absolutely. Between two integers it is absolute: 41 is not 42.
        accept_text: Whether text that spells a number counts as that number.
        accept_printed: Whether the last printed line counts, parsed like text, if the code
            does not end in a value.
        ends: Whether the right answer ends the episode. Otherwise every step with that value
            earns `right`.
        part: The name of this part of the reward.

    Raises:
        OptionError: An option is invalid.
    """

    def __init__(
        self,
        expected_answer: Any,
        *,
        right: float = 1.0,
        wrong: float = 0.0,
        tolerance: float = 1e-9,
        accept_text: bool = False,
        accept_printed: bool = False,
        ends: bool = False,
        part: str = "math",
    ) -> None:
        self._expected = read_expected(expected_answer, f"{_MATH}(expected_answer=…)")
        if self._expected is None:
            raise OptionError(
                f"{_MATH}(expected_answer=None): expected_answer must not be None, which is the "
                "value of code without an answer."
            )
        self._right = read_reward(_MATH, "right", right)
        self._wrong = read_reward(_MATH, "wrong", wrong)
        if self._right <= self._wrong:
            raise OptionError(
                f"{_MATH}(right={right!r}, wrong={wrong!r}): right must be greater than wrong."
            )
        check_tolerance("tolerance", tolerance)
        self._tolerance = float(tolerance)
        self._accept_text = accept_text
        self._accept_printed = accept_printed
        self._ends = ends
        self._part = read_part(_MATH, part)

    def __call__(self, observation: Observation) -> Observation:
        """Set the part. The first observation of an episode is unchanged."""
        step = read_step(observation, _MATH)
        if step is None:
            return observation
        is_right = self._is_right(step)
        step.set_reward(self._part, self._right if is_right else self._wrong)
        step.done = step.done or (is_right and self._ends)
        return step

    def _is_right(self, step: CodeObservation) -> bool:
        result = step.execution_result
        if not result.success:
            return False
        if result.return_value is None and result.return_repr is None and self._accept_printed:
            last = result.stdout.rstrip().splitlines()[-1:]
            return any(self._matches_text(line.strip()) for line in last)
        if type(result.return_value) is str and self._accept_text:
            return self._matches_text(result.return_value)
        return self._is_same(result.return_value)

    def _matches_text(self, text: str) -> bool:
        number = None if isinstance(self._expected, str) else read_number(text)
        return self._is_same(text if number is None else number)

    def _is_same(self, answer: Any) -> bool:
        return is_same(
            answer,
            self._expected,
            relative=self._tolerance,
            absolute=self._tolerance,
            exact_integers=True,
        )


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

_QUALITY = "CodeQualityTransform"
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
        self._part = read_part(_QUALITY, part)

    def __call__(self, observation: Observation) -> Observation:
        """Add the part. The first observation of an episode is unchanged."""
        step = read_step(observation, _QUALITY)
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
