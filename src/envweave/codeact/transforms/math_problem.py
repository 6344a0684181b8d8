"""`MathProblemTransform`: compares the value of the code with the expected answer."""

from __future__ import annotations

from typing import Any, final

from envweave.codeact.grading.comparison import check_tolerance, is_same, read_expected, read_number
from envweave.codeact.models import CodeObservation
from envweave.codeact.transforms.checks import read_part, read_reward, read_step
from envweave.errors import OptionError
from envweave.transforms import Transform
from envweave.types import Observation

_NAME = "MathProblemTransform"


@final
class MathProblemTransform(Transform):
    """Sets a part of the reward by whether the value of the code is the expected answer.

    The answer stays on the host: it is in no observation, in no `repr` and in no session. The value
    of the code is compared with it as plain data (see
    `envweave.codeact.grading.comparison.is_same`). Code that raised, or was ended by a limit, is
    wrong whatever its value.

    Args:
        expected_answer: A number; or text, or lists and dicts of such, or an array.
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
        self._expected = read_expected(expected_answer, f"{_NAME}(expected_answer=…)")
        if self._expected is None:
            raise OptionError(
                f"{_NAME}(expected_answer=None): expected_answer must not be None, which is the "
                "value of code without an answer."
            )
        self._right = read_reward(_NAME, "right", right)
        self._wrong = read_reward(_NAME, "wrong", wrong)
        if self._right <= self._wrong:
            raise OptionError(
                f"{_NAME}(right={right!r}, wrong={wrong!r}): right must be greater than wrong."
            )
        check_tolerance("tolerance", tolerance)
        self._tolerance = float(tolerance)
        self._accept_text = accept_text
        self._accept_printed = accept_printed
        self._ends = ends
        self._part = read_part(_NAME, part)

    def __call__(self, observation: Observation) -> Observation:
        """Set the part. The first observation of an episode is unchanged."""
        step = read_step(observation, _NAME)
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
