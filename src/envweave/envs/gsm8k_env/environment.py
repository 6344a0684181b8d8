"""GSM8K: school mathematics in words, answered with a number, or by one of four choices."""

from __future__ import annotations

import os
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
from envweave.envs.gsm8k_env.choices import format_value, make_choices
from envweave.envs.gsm8k_env.dataset import load
from envweave.errors import OptionError, suggest

Extraction = Literal["lenient", "exact"]


@dataclass
class GSM8KAction(ew.Action):
    """What the agent says: a solution with its answer, or the letter of a choice."""

    text: str


@dataclass
class GSM8KObservation(ew.Observation):
    """The question and how to answer it; empty once it is answered."""

    prompt: str = ""


@dataclass(kw_only=True)
class GSM8KState(ew.State):
    """Which question it is, and of which dataset: `gsm8k`, or `gsm8k-sample`."""

    task_id: str | None = None
    dataset: str = ""


class SingleQuestion(ew.Environment):
    """One question of GSM8K, one answer. What is right is never shown, not even at the end.

    The reward has two parts: `correct`, 1 if the answer is right, and `format`, `format_reward` if
    it has exactly the form that was asked for. The metrics `success` and `format` say the same as
    0 or 1. `info["dataset"]` of a reset names the dataset.

    Args:
        path: A folder with `train.jsonl` and `test.jsonl`; `$ENVWEAVE_GSM8K` by default, else the
            cache, else the sample that comes with the package.
        download: Whether to download GSM8K into the cache if it is not there. An address is that
            of another copy; the checksums are the same.
        split: Where a task is drawn from when none is asked for: `"train"` or `"test"`.
        max_examples: At most so many questions of each split, from its start.
        extraction: `"lenient"` finds the answer in a text as people write it; `"exact"` requires
            the form that was asked for.
        format_reward: What the form earns.
        instruction: How to answer, below the question.

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
                f"extraction={extraction!r} is neither 'lenient' nor 'exact'."
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
        """Pose the question of a task, by `_pose`."""

    def _pose(self, task: ew.Task, text: str, expected: Any, **info: Any) -> GSM8KObservation:
        self._expected, self._task_id = expected, task.id
        metadata = {"dataset": self.dataset, "split": task.split, **info}
        return GSM8KObservation(f"{text}\n\n{self._instruction}", metadata=metadata)

    def step(self, action: GSM8KAction) -> GSM8KObservation:
        """Judge the answer, which ends the episode."""
        is_correct = self._extract(action.text) == self._expected
        is_formatted = self.readers["exact"](action.text) is not None
        seen = GSM8KObservation(done=True)
        seen.add_reward("correct", float(is_correct))
        seen.add_reward("format", self._format_reward * is_formatted)
        seen.metadata["metrics"] = {"success": float(is_correct), "format": float(is_formatted)}
        return seen

    @property
    def state(self) -> GSM8KState:
        """Which question it is; not its answer."""
        return GSM8KState(task_id=self._task_id, dataset=self.dataset)


@final
class GSM8KEnv(SingleQuestion):
    """Answer a question of GSM8K with a number, at the end of a solution in words.

    The form that is asked for is GSM8K's own: a last line `#### 42`. See `SingleQuestion` for the
    reward and the options.
    """

    default_instruction = (
        "Solve the problem step by step. End with a line such as '#### 42', the number alone."
    )
    readers: ClassVar = {"lenient": lenient_answer, "exact": exact_answer}

    def reset(self, *, task: ew.Task, seed: int | None = None) -> GSM8KObservation:  # noqa: ARG002 - it draws the task
        """Pose the question."""
        return self._pose(task, task.data["question"], Fraction(task.private["answer"]))


@final
class GSM8KChoiceEnv(SingleQuestion):
    """Choose the answer to a question of GSM8K among four.

    The form that is asked for is the letter alone. The seed of the episode decides the wrong
    choices and the order, so the same task and seed pose the same. `info["choices"]` of a reset
    lists them. See `SingleQuestion` for the reward and the options.
    """

    default_instruction = "Which one is right? Answer with the letter alone."
    readers: ClassVar = {"lenient": lenient_choice, "exact": exact_choice}

    def reset(self, *, task: ew.Task, seed: int | None = None) -> GSM8KObservation:
        """Pose the question with its choices."""
        answer = Fraction(task.private["answer"])
        values = make_choices(task.id, task.private["solution"], answer, seed)
        choices = [format_value(value) for value in values]
        lines = [f"{letter}) {choice}" for letter, choice in zip(CHOICES, choices, strict=True)]
        text = "\n".join([task.data["question"], "", *lines])
        return self._pose(task, text, CHOICES[values.index(answer)], choices=choices)
