"""What authors subclass: `Action`, `Observation` and `State`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Action:
    """What an agent does. Subclass it as a dataclass; fields without defaults are welcome.

    Attributes:
        metadata: Anything the caller wants to travel along with the action.
    """

    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Observation:
    """What an environment shows. Subclass it as a dataclass.

    Attributes:
        reward: What the last action earned; `None` means not scored yet.
        done: Whether the task itself ended the episode (`StepResult.terminated`).
        truncated: Whether a limit ended the episode.
        metadata: Becomes `StepResult.info`. Three names have a meaning there:
            `action_mask`, `reward_parts` (they must sum to `reward`) and `metrics`.
    """

    reward: float | None = None
    done: bool = False
    truncated: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    def add_reward(self, part: str, value: float) -> None:
        """Add `value` to the reward under the name `part`, so that the parts still sum.

        A reward that had no parts yet becomes the part `"base"`.
        """
        parts: dict[str, float] = self.metadata.setdefault("reward_parts", {})
        if not parts and self.reward is not None:
            parts["base"] = float(self.reward)
        parts[part] = parts.get(part, 0.0) + float(value)
        self.reward = (self.reward or 0.0) + float(value)

    def set_reward(self, part: str, value: float) -> None:
        """Set the reward part called `part` to `value`; other parts stay as they are."""
        self.add_reward(part, 0.0)
        parts: dict[str, float] = self.metadata["reward_parts"]
        # Not the sum of the parts: if they did not sum before, the session must still detect it.
        self.reward = (self.reward or 0.0) + (float(value) - parts[part])
        parts[part] = float(value)


@dataclass(kw_only=True)
class State:
    """The state behind the observations of an environment. Subclass it as a dataclass.

    Attributes:
        episode_id: The episode that is running, or ran last.
        step_count: How many steps that episode has taken.
    """

    episode_id: str | None = None
    step_count: int = 0
