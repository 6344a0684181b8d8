"""Turning a question with a number for an answer into one with four choices."""

from __future__ import annotations

import hashlib
import random
import re
from fractions import Fraction

from envweave.envs.gsm8k_env.answers import CHOICES

_STEP = re.compile(r"<<[^<>]*=\s*(-?[\d,]*\.?\d+)\s*>>")


def make_choices(task_id: str, solution: str, answer: Fraction, seed: int | None) -> list[Fraction]:
    """Return four different values, one of which is the answer, in the order they are shown.

    The others are results of steps in the solution, and slips: off by one or ten, doubled, halved,
    with a digit too many or two swapped. How many of them are smaller than the answer is drawn
    first, so that neither its place nor its size gives the answer away. The same task and seed give
    the same choices. The order also depends on the solution, so it cannot be computed without it.
    """
    key = hashlib.sha256(f"{task_id}\0{seed}\0{solution}".encode()).digest()
    rng = random.Random(key)  # noqa: S311 - a draw, not a secret
    wrong = _distractors(answer, _candidates(solution, answer, rng), rng)
    choices = [answer, *wrong]
    rng.shuffle(choices)
    return choices


def format_value(value: Fraction) -> str:
    """Write a value as a person would: `1,234`, `0.5`, `1/3`."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    if not 10**6 % value.denominator:
        return f"{float(value):,.6f}".rstrip("0")
    return f"{value.numerator}/{value.denominator}"


def _candidates(solution: str, answer: Fraction, rng: random.Random) -> list[Fraction]:
    """Plausible wrong values, the best ones first."""
    steps = [Fraction(text.replace(",", "")) for text in _STEP.findall(solution)]
    slips = [answer * 2, answer / 2, answer * 10, answer / 10, answer * 3, answer * Fraction(3, 4)]
    slips += [answer + by for by in (1, -1, 2, -2, 5, -5, 10, -10)]
    slips += [answer * Fraction(5, 4), answer * Fraction(3, 2), _swapped(answer)]
    rng.shuffle(steps)
    rng.shuffle(slips)
    near = [answer + by for by in range(3, 40)] + [answer - by for by in range(3, 40)]
    return [*steps, *slips, *near]


def _distractors(
    answer: Fraction, candidates: list[Fraction], rng: random.Random
) -> list[Fraction]:
    """Three different wrong values, of which a drawn number is smaller than the answer."""
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


def _swapped(answer: Fraction) -> Fraction:
    digits = str(abs(answer.numerator))
    swapped = Fraction(int(digits[:-2] + digits[-2:][::-1]), answer.denominator)
    return -swapped if answer < 0 else swapped
