"""`CodeSafetyTransform`: unsafe code never earns more than the penalty."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, final

from envweave.codeact.transforms.rewards import read_part, read_reward, read_step
from envweave.codeact.transforms.static_analysis import (
    UNSAFE_MODULES,
    UNSAFE_NAMES,
    Finding,
    SafetyReport,
    judge_code,
)
from envweave.errors import OptionError
from envweave.transforms import TransformResult
from envweave.types import Observation

_NAME = "CodeSafetyTransform"
_RAN = Finding(1, "cannot be judged: it does not parse here, but it ran")


@final
class CodeSafetyTransform(TransformResult):
    """Takes back the reward of unsafe code, and adds a penalty.

    It judges the code before any other transform can hide it, and is applied after all of them,
    wherever it is in the list: the total reward of unsafe code is at most `penalty`.
    `observation.metadata["code_safety"]` lists what was found.

    The judgment is a plain walk of the syntax tree:

    - imports of `modules`;
    - names of builtins in `names`, also where the code has bound them itself: a variable called
      `input` counts as the builtin. A tool of that name does not;
    - attributes: names between double underscores, names that lead to frames, and parts of
      modules such as `numpy.load`. Of names for modules, only those bound by imports are followed.

    It resolves no scopes, evaluates no expressions and does not look into strings. It shapes what
    a policy learns to write, and is not a security boundary: that is the sandbox.

    Code that does not parse is safe, but earns no `safe_reward`: it did nothing.

    Args:
        penalty: The most that unsafe code earns; 0 or less.
        safe_reward: Added to the reward of safe code.
        modules: What safe code must not import; with a dot, parts of a module that it must not
            use. To allow more than the default: `UNSAFE_MODULES - {"sys"}`.
        names: Builtins that safe code must not use.
        part: The name of this part of the reward.

    Raises:
        OptionError: An option is invalid.
    """

    def __init__(
        self,
        penalty: float = -1.0,
        safe_reward: float = 0.0,
        *,
        modules: Iterable[str] = UNSAFE_MODULES,
        names: Iterable[str] = UNSAFE_NAMES,
        part: str = "safety",
    ) -> None:
        self._penalty = read_reward(_NAME, "penalty", penalty)
        self._safe_reward = read_reward(_NAME, "safe_reward", safe_reward)
        self._modules = _names("modules", modules)
        self._names = _names("names", names)
        self._part = read_part(_NAME, part)
        if self._penalty > 0:
            raise OptionError(
                f"{_NAME}(penalty={penalty!r}) would reward unsafe code: it must be 0 or less."
            )
        if self._safe_reward < self._penalty:
            raise OptionError(
                f"{_NAME}(safe_reward={safe_reward!r}) is less than the penalty, {penalty!r}: "
                "unsafe code would earn more than safe code."
            )

    def judge(self, observation: Observation) -> Callable[[Observation], Observation]:
        """Judge the code of a step. The first observation of an episode has no code."""
        step = read_step(observation, _NAME)
        if step is None:
            return _unchanged
        report = judge_code(
            step.code, modules=self._modules, names=self._names, own=step.available_tools
        )
        if not report.parses and step.execution_result.success:
            report = SafetyReport(parses=True, found=(_RAN,))
        return functools.partial(self._apply, report)

    def _apply(self, report: SafetyReport, observation: Observation) -> Observation:
        found = [{"line": one.line, "what": one.what} for one in report.found]
        if report.safe:
            earned = self._safe_reward if report.parses else 0.0
            observation.add_reward(self._part, earned)
        else:
            before = max(0.0, observation.reward or 0.0)
            observation.add_reward(self._part, self._penalty - before)
            # The sum is rounded, and may end up slightly above the penalty.
            observation.reward = min(observation.reward or 0.0, self._penalty)
        observation.metadata["code_safety"] = {"safe": report.safe, "found": found}
        return observation


def _unchanged(observation: Observation) -> Observation:
    return observation


def _names(option: str, given: Any) -> frozenset[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"{_NAME}({option}={given!r}): expected a collection of names.")
    names = frozenset(given)
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"{_NAME}({option}=…): names must be strings, got {name!r}.")
    return names
