"""Episodes with a random policy, and their statistics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import envweave as ew
from envweave.errors import SpecError, format_error
from envweave.testing import RandomPolicy
from envweave.testing.policy import take_step

Return = float | dict[str, float] | None


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """One episode that is over.

    Attributes:
        number: Index of the episode, from 1.
        seed: The seed of its reset, if the environment takes one.
        task_id: Its task, if it had one.
        total: The sum of its rewards, by agent if there are several; `None` if it was not
            scored or is not valid.
        length: Number of steps.
        duration_s: Duration, including the reset.
        valid: Whether it may be trained on.
        reason: Why it ended.
        blame: Who caused a failure.
        cause: Description of a failure.
    """

    number: int
    seed: int | None
    task_id: str | None
    total: Return
    length: int
    duration_s: float
    valid: bool
    reason: str
    blame: str | None
    cause: str | None

    def as_json(self) -> dict[str, Any]:
        """Return its entry in the output of `envweave run --json`."""
        return {
            "episode": self.number,
            "seed": self.seed,
            "task_id": self.task_id,
            "return": self.total,
            "length": self.length,
            "duration_s": self.duration_s,
            "valid": self.valid,
            "reason": self.reason,
            "blame": self.blame,
            "cause": self.cause,
        }


def play(env: ew.Env, *, episodes: int, seed: int | None) -> Iterator[FinishedEpisode]:
    """Run episodes one after the other, with random actions.

    Raises:
        SpecError: No random action can be drawn for this environment.
        EnvWeaveError: The environment refused the seed or every action, or could not be reset.
    """
    choose: Callable[[ew.StepResult[Any]], Any] | None = None
    for number in range(1, episodes + 1):
        began_s = time.perf_counter()
        result: ew.StepResult[Any] = env.reset(seed=seed if number == 1 else None)
        given = result.info.get("seed")
        if choose is None:
            choose = RandomPolicy(env.action_spec, given if seed is None else seed)
        task_id, total = result.task_id, None
        while not result.done:
            _, result = take_step(env, partial(draw, env.id, choose), result)
            total = add_reward(total, result.reward)
        assert result.end is not None
        yield FinishedEpisode(
            number=number,
            seed=given,
            task_id=task_id,
            total=total if result.valid else None,
            length=result.step_index,
            duration_s=time.perf_counter() - began_s,
            valid=result.valid,
            reason=result.end.reason,
            blame=result.end.blame,
            cause=result.end.cause,
        )


def draw(
    env_id: str, choose: Callable[[ew.StepResult[Any]], Any], result: ew.StepResult[Any]
) -> Any:
    """Draw an action for a result.

    Raises:
        SpecError: No random action can be drawn for this environment.
    """
    try:
        return choose(result)
    except Exception as error:
        reason = str(error) if isinstance(error, SpecError) else format_error(error)
        raise SpecError(f"The random policy cannot act in {env_id!r}: {reason}") from error


def add_reward(total: Return, reward: Any) -> Return:
    """Add a reward; `None` means not scored yet and adds nothing."""
    if isinstance(reward, dict):
        sums = dict(total) if isinstance(total, dict) else {}
        for agent, one in reward.items():
            if one is not None:
                sums[agent] = sums.get(agent, 0.0) + one
        return sums
    if reward is None:
        return total
    return (total if isinstance(total, float) else 0.0) + float(reward)


def summarize(finished: Sequence[FinishedEpisode]) -> dict[str, Any]:
    """Return means over the valid episodes and counts over all."""
    duration_s = sum(one.duration_s for one in finished)
    valid = [one for one in finished if one.valid]
    steps = sum(one.length for one in finished)
    return {
        "episodes": len(finished),
        "valid": len(valid),
        "invalid": len(finished) - len(valid),
        "mean_return": _mean_return([one.total for one in valid]),
        "mean_length": _mean([float(one.length) for one in valid]),
        "steps": steps,
        "duration_s": duration_s,
        "steps_per_s": steps / duration_s if duration_s > 0 else None,
        "ends": dict(sorted(Counter(one.reason for one in finished).items())),
    }


def _mean_return(totals: Sequence[Return]) -> Return:
    by_agent: dict[str, list[float]] = {}
    for total in totals:
        if isinstance(total, dict):
            for agent, one in total.items():
                by_agent.setdefault(agent, []).append(one)
    if by_agent:
        return {agent: sum(every) / len(every) for agent, every in by_agent.items()}
    return _mean([total for total in totals if isinstance(total, float)])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
