"""CodeFix: choose the operator that makes one line of code match its specification.

A prompt has three parts: the specification in words, the code with a gap, and one example.

```text
Spec: return a times b instead of b added to a.
Code: def f(a, b): return a ? b
Example: f(6, 4) == 24
```

Wording and numbers vary from task to task. Some specifications also name a wrong operation, so
spotting a word is not enough. In every example the four operators give four different results, so
exactly one fits.

The splits `train` and `test` share no prompt. A specification is a frame around one phrase or two,
and the test split has the combinations of frame and phrase, or of two phrases, that the train
split leaves out. Every frame and every phrase occurs in both, so `test` measures reading known
words in new combinations. The example alone also determines the operator, by calculation.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import envweave as ew

Operator: TypeAlias = Literal["+", "-", "*", "//"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)

_COMPUTE: dict[Operator, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}
_PHRASES: dict[Operator, tuple[str, ...]] = {
    "+": (
        "a plus b",
        "the sum of a and b",
        "b added to a",
        "a increased by b",
        "the total of a and b",
        "b more than a",
    ),
    "-": (
        "a minus b",
        "the difference of a and b",
        "b subtracted from a",
        "a reduced by b",
        "what is left of a without b",
        "b less than a",
    ),
    "*": (
        "a times b",
        "the product of a and b",
        "a multiplied by b",
        "b copies of a added up",
        "the area of an a by b field",
        "a taken b times",
    ),
    "//": (
        "a divided by b, rounded down",
        "the whole quotient of a and b",
        "how many times b fits into a",
        "a shared by b, remainder dropped",
        "the size of b equal parts of a, rounded down",
        "how often b can be taken from a",
    ),
}
_FRAMES = (
    "return {wanted}.",
    "it must return {wanted}.",
    "f gives {wanted}.",
    "please compute {wanted}.",
    "given a and b, find {wanted}.",
    "we need {wanted} here.",
    "make f return {wanted}.",
    "the result is {wanted}.",
    "not {other}, but {wanted}.",
    "return {wanted} instead of {other}.",
)


@dataclass
class CodeFixAction(ew.Action):
    """Put an operator into the gap."""

    operator: Operator


@dataclass
class CodeFixObservation(ew.Observation):
    """The specification, the code with a gap, and an example."""

    prompt: str


def make_task(split: str, index: int) -> ew.Task:
    """Make the task `"{split}-{index}"`; its operator is private."""
    rng = random.Random(f"codefix-{split}-{index}")  # noqa: S311 - a task, not a secret
    wanted, other = rng.sample(OPERATORS, 2)
    spec = _spec(rng, wanted, other, split)
    a, b = _example_numbers(rng)
    prompt = (
        f"Spec: {spec}\n"
        "Code: def f(a, b): return a ? b\n"
        f"Example: f({a}, {b}) == {_COMPUTE[wanted](a, b)}"
    )
    return ew.Task(f"{split}-{index}", split, {"prompt": prompt}, private={"operator": wanted})


def _spec(rng: random.Random, wanted: Operator, other: Operator, split: str) -> str:
    """Draw a specification of the split."""
    while True:
        frame = rng.randrange(len(_FRAMES))
        i, j = rng.randrange(len(_PHRASES[wanted])), rng.randrange(len(_PHRASES[other]))
        partner = j if "{other}" in _FRAMES[frame] else frame
        if ((i + partner) % 4 == 3) == (split == "test"):
            return _FRAMES[frame].format(wanted=_PHRASES[wanted][i], other=_PHRASES[other][j])


def _example_numbers(rng: random.Random) -> tuple[int, int]:
    """Draw two numbers for which no two operators give the same result."""
    while True:
        a, b = rng.randint(1, 99), rng.randint(1, 12)
        if len({compute(a, b) for compute in _COMPUTE.values()}) == len(_COMPUTE):
            return a, b


class CodeFixEnv(ew.Environment):
    """Choose the operator that makes `return a ? b` match the specification.

    One step per episode: the right operator earns 1, any other −1. The last observation has the
    metric `success`. Tasks are endless, `train-0`, `train-1`, … and `test-0`, `test-1`, …; without
    one, `reset` draws from `train` by the seed.
    """

    copyable = True
    tasks = ew.Tasks.endless(make_task, splits=("train", "test"))

    def __init__(self) -> None:
        self._prompt = ""
        self._operator = ""

    def reset(self, *, task: ew.Task, seed: int | None = None) -> CodeFixObservation:  # noqa: ARG002 - it seeds the choice of the task
        """Return the task's prompt."""
        self._prompt = task.data["prompt"]
        self._operator = task.private["operator"]
        return CodeFixObservation(self._prompt)

    def step(self, action: CodeFixAction) -> CodeFixObservation:
        """Check the operator, and end the episode."""
        is_right = action.operator == self._operator
        return CodeFixObservation(
            self._prompt,
            reward=1.0 if is_right else -1.0,
            done=True,
            metadata={"metrics": {"success": float(is_right)}},
        )

    def solution(self) -> CodeFixAction:
        """Return the right operator."""
        return CodeFixAction(self._operator)  # type: ignore[arg-type] # of a task, which has one
