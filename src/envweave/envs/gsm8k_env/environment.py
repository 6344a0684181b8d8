"""GSM8K: math word problems, answered with a number, or by one of four choices."""

from __future__ import annotations

import hashlib
import os
import random
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, final, get_args

import envweave as ew
from envweave.envs.gsm8k_env.answers import (
    CHOICES,
    exact_answer,
    exact_choice,
    lenient_answer,
    lenient_choice,
)
from envweave.envs.gsm8k_env.dataset import load
from envweave.errors import OptionError, suggest

_STEP = re.compile(r"<<[^<>]*=\s*(-?[\d,]*\.?\d+)\s*>>")


def make_choices(task_id: str, solution: str, answer: Fraction, seed: int | None) -> list[Fraction]:
    """Return four different values, one of which is the answer, in display order.

    The others are intermediate results of the solution, and typical mistakes: off by one or ten,
    doubled, halved, with an extra digit or two swapped. The number of smaller ones is drawn first,
    so that neither its position nor its size reveals the answer. The same task and seed give
    the same choices. The order also depends on the solution, so it cannot be computed without it.
    """
    key = hashlib.sha256(f"{task_id}\0{seed}\0{solution}".encode()).digest()
    rng = random.Random(key)  # noqa: S311 - a draw, not a secret
    wrong = _distractors(answer, _candidates(solution, answer, rng), rng)
    choices = [answer, *wrong]
    rng.shuffle(choices)
    return choices


def format_value(value: Fraction) -> str:
    """Format a value as a person would: `1,234`, `0.5`, `1/3`."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    if not 10**6 % value.denominator:
        return f"{float(value):,.6f}".rstrip("0")
    return f"{value.numerator}/{value.denominator}"


def _candidates(solution: str, answer: Fraction, rng: random.Random) -> list[Fraction]:
    """Return plausible wrong values, the best ones first."""
    steps = [Fraction(text.replace(",", "")) for text in _STEP.findall(solution)]
    slips = [answer * 2, answer / 2, answer * 10, answer / 10, answer * 3, answer * Fraction(3, 4)]
    slips += [answer + by for by in (1, -1, 2, -2, 5, -5, 10, -10)]
    slips += [answer * Fraction(5, 4), answer * Fraction(3, 2), _swap_digits(answer)]
    rng.shuffle(steps)
    rng.shuffle(slips)
    near = [answer + by for by in range(3, 40)] + [answer - by for by in range(3, 40)]
    return [*steps, *slips, *near]


def _distractors(
    answer: Fraction, candidates: list[Fraction], rng: random.Random
) -> list[Fraction]:
    """Return three different wrong values, of which a random number is below the answer."""
    whole = answer.denominator == 1
    plausible = [
        value
        for value in dict.fromkeys(candidates)
        if value != answer and (value >= 0 or answer < 0) and (not whole or value.denominator == 1)
    ]
    smaller = [value for value in plausible if value < answer]
    larger = [value for value in plausible if value > answer]
    below = min(rng.randrange(len(CHOICES)), len(smaller))
    return smaller[:below] + larger[: len(CHOICES) - 1 - below]


def _swap_digits(answer: Fraction) -> Fraction:
    digits = str(abs(answer.numerator))
    swapped = Fraction(int(digits[:-2] + digits[-2:][::-1]), answer.denominator)
    return -swapped if answer < 0 else swapped


Extraction = Literal["lenient", "exact"]


@dataclass
class GSM8KAction(ew.Action):
    """The agent's text: a solution with its answer, or the letter of a choice."""

    text: str


@dataclass
class GSM8KObservation(ew.Observation):
    """The question and how to answer it; empty after the answer."""

    prompt: str = ""


@dataclass(kw_only=True)
class GSM8KState(ew.State):
    """The current task, and the dataset: `gsm8k` or `gsm8k-sample`."""

    task_id: str | None = None
    dataset: str = ""


class SingleQuestion(ew.Environment):
    """One question of GSM8K and one answer. The right answer is never shown, not even at the end.

    The reward has two parts: `correct`, 1 if the answer is right, and `format`, `format_reward` if
    it has exactly the required form. The metrics `success` and `format` are the same as 0 or 1.
    `info["dataset"]` of a reset is the name of the dataset.

    Args:
        path: A folder with `train.jsonl` and `test.jsonl`; default: `$ENVWEAVE_GSM8K`, else the
            cache, else the sample in the package.
        download: Whether to download GSM8K into the cache if it is missing. A string is the URL
            of another copy, with the same checksums.
        split: The split that tasks are drawn from by default: `"train"` or `"test"`.
        max_examples: Maximum number of questions of each split, from its start.
        extraction: `"lenient"` finds the answer in a text as people write it; `"exact"` requires
            the required form.
        format_reward: The reward for the form.
        instruction: How to answer; shown below the question.

    Raises:
        OptionError: An option is invalid, or `path` has no questions.
        StartupError: The download failed.
    """

    default_instruction: ClassVar[str]
    readers: ClassVar[dict[str, Callable[[str], Any]]]

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        download: bool | str = False,
        split: str = "train",
        max_examples: int | None = None,
        extraction: Extraction = "lenient",
        format_reward: float = 0.1,
        instruction: str | None = None,
    ) -> None:
        if extraction not in get_args(Extraction):
            raise OptionError(
                f"extraction must be 'lenient' or 'exact', got {extraction!r}."
                f"{suggest(str(extraction), get_args(Extraction))}"
            )
        data = load(path, download=download, first_split=split, max_examples=max_examples)
        self.dataset = data.name
        self.tasks = data.tasks
        self._extract = self.readers[extraction]
        self._format_reward = format_reward
        self._instruction = self.default_instruction if instruction is None else instruction
        self._expected: Any = None
        self._task_id: str | None = None

    @abstractmethod
    def reset(self, *, task: ew.Task, seed: int | None = None) -> GSM8KObservation:
        """Return the question of a task, made by `_pose`."""

    def _pose(self, task: ew.Task, text: str, expected: Any, **info: Any) -> GSM8KObservation:
        self._expected, self._task_id = expected, task.id
        metadata = {"dataset": self.dataset, "split": task.split, **info}
        return GSM8KObservation(f"{text}\n\n{self._instruction}", metadata=metadata)

    def step(self, action: GSM8KAction) -> GSM8KObservation:
        """Grade the answer, which ends the episode."""
        is_correct = self._extract(action.text) == self._expected
        is_formatted = self.readers["exact"](action.text) is not None
        result = GSM8KObservation(done=True)
        result.add_reward("correct", float(is_correct))
        result.add_reward("format", self._format_reward * is_formatted)
        result.metadata["metrics"] = {"success": float(is_correct), "format": float(is_formatted)}
        return result

    def snapshot(self) -> tuple[Any, str | None]:
        """Return the current question, without the dataset."""
        return self._expected, self._task_id

    def restore(self, snapshot: tuple[Any, str | None]) -> None:
        """Continue with the question of a snapshot."""
        self._expected, self._task_id = snapshot

    def solution(self) -> GSM8KAction:
        """Return the right answer in the required form."""
        expected = self._expected
        is_letter = isinstance(expected, str)
        return GSM8KAction(expected if is_letter else f"#### {format_value(expected)}")

    @property
    def state(self) -> GSM8KState:
        """The current task, without its answer."""
        return GSM8KState(task_id=self._task_id, dataset=self.dataset)


@final
class GSM8KEnv(SingleQuestion):
    """Answer a question of GSM8K with a number, at the end of a written solution.

    The required form is GSM8K's own: a last line `#### 42`. See `SingleQuestion` for the
    reward and the options.
    """

    default_instruction = (
        "Solve the problem step by step. End with a line such as '#### 42', the number alone."
    )
    readers: ClassVar = {"lenient": lenient_answer, "exact": exact_answer}

    def reset(self, *, task: ew.Task, seed: int | None = None) -> GSM8KObservation:  # noqa: ARG002 - it seeds the choice of the task
        """Return the question."""
        return self._pose(task, task.data["question"], Fraction(task.private["answer"]))


@final
class GSM8KChoiceEnv(SingleQuestion):
    """Choose the answer to a question of GSM8K among four.

    The required form is the letter alone. The seed of the episode determines the wrong choices and
    the order, so the same task and seed give the same choices. `info["choices"]` of a reset lists
    them. See `SingleQuestion` for the reward and the options.
    """

    default_instruction = "Which one is right? Answer with the letter alone."
    readers: ClassVar = {"lenient": lenient_choice, "exact": exact_choice}

    def reset(self, *, task: ew.Task, seed: int | None = None) -> GSM8KObservation:
        """Return the question with its choices."""
        answer = Fraction(task.private["answer"])
        values = make_choices(task.id, task.private["solution"], answer, seed)
        choices = [format_value(value) for value in values]
        lines = [f"{letter}) {choice}" for letter, choice in zip(CHOICES, choices, strict=True)]
        text = "\n".join([task.data["question"], "", *lines])
        return self._pose(task, text, CHOICES[values.index(answer)], choices=choices)
