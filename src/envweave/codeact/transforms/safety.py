"""`CodeSafetyTransform`: unsafe code never earns more than its penalty."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, final

from envweave.codeact.transforms.reading import read_part, read_reward, read_step
from envweave.codeact.transforms.unsafe_code import Finding, SafetyReport, judge_code
from envweave.codeact.transforms.unsafe_names import UNSAFE_MODULES, UNSAFE_NAMES
from envweave.errors import OptionError
from envweave.transforms import TransformResult
from envweave.types import Observation

_NAME = "CodeSafetyTransform"
_RAN = Finding(1, "cannot be judged: it cannot be parsed here, and yet it ran")


@final
class CodeSafetyTransform(TransformResult):
    """Takes back what unsafe code has earned, and a penalty on top.

    It judges the code by its syntax tree before any other transform can hide it, and has the last
    word after all of them, wherever it stands: the whole reward of unsafe code is at most
    `penalty`. `observation.metadata["code_safety"]` says what was found.

    Code that does not parse is safe, but earns no `safe_reward`: it did nothing.

    Args:
        penalty: What unsafe code earns at most; 0 or less.
        safe_reward: What safe code earns besides all else.
        modules: What safe code does not import; with a dot, what it does not use of a module.
            For less than the default: `UNSAFE_MODULES - {"sys"}`.
        names: The builtins that safe code does not use. A tool of the same name is another thing.
        part: The name of this part of the reward.

    Raises:
        OptionError: An option is not sound.
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
            raise OptionError(f"{_NAME}(penalty={penalty!r}) would pay for unsafe code.")
        if self._safe_reward < self._penalty:
            raise OptionError(
                f"{_NAME}(safe_reward={safe_reward!r}) is less than the penalty, {penalty!r}: "
                "unsafe code would come out ahead."
            )

    def judge(self, observation: Observation) -> Callable[[Observation], Observation]:
        """Judge the code of a step. The first observation of an episode has none."""
        step = read_step(observation, _NAME)
        if step is None:
            return _pass_on
        judgement = judge_code(
            step.code, modules=self._modules, names=self._names, own=step.available_tools
        )
        if not judgement.parses and step.execution_result.success:
            judgement = SafetyReport(parses=True, found=(_RAN,))
        return functools.partial(self._speak, judgement)

    def _speak(self, judgement: SafetyReport, observation: Observation) -> Observation:
        found = [{"line": one.line, "what": one.what} for one in judgement.found]
        if judgement.safe:
            earned = self._safe_reward if judgement.parses else 0.0
            observation.add_reward(self._part, earned)
        else:
            before = max(0.0, observation.reward or 0.0)
            observation.add_reward(self._part, self._penalty - before)
            # Their sum is rounded, and might be a hair above.
            observation.reward = min(observation.reward or 0.0, self._penalty)
        observation.metadata["code_safety"] = {"safe": judgement.safe, "found": found}
        return observation


def _pass_on(observation: Observation) -> Observation:
    return observation


def _names(option: str, given: Any) -> frozenset[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"{_NAME}({option}={given!r}): expected several names.")
    names = frozenset(given)
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"{_NAME}({option}=…): {name!r} is no name.")
    return names
