"""rLLM: any environment in the form of its `BaseEnv`.

rLLM merges a task with `env_args` and calls `RllmEnv.from_dict`. There, `env_id` names the
environment, `env_options` has the options of `chat` and `make`, and `seed`, `task_id` and `options`
begin the episode. rLLM itself is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from envweave.errors import OptionError
from envweave.trainers.episodes import EpisodeScore, chat_of_one, reset_arguments, text_of

_OF_EPISODE = ("seed", "task", "task_id", "options")


class RllmEnv:
    """One environment, as rLLM makes, plays and closes it.

    A failed episode raises `EnvironmentFailure`.

    Args:
        env_id: What `chat` takes.
        row: The task, or `None`.
        **options: The options of `chat` and `make`.

    Attributes:
        idx: Its index in a batch, which rLLM sets.
    """

    def __init__(
        self, env_id: Any, *, row: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self.idx: Any = None
        self._row = row
        self._chat = chat_of_one(env_id, **options)
        self._score = EpisodeScore()

    @classmethod
    def from_dict(cls, info: Mapping[str, Any]) -> Self:
        """Make an environment from a task and `env_args`, which rLLM merges.

        Raises:
            OptionError: There is no `env_id`.
        """
        if "env_id" not in info:
            raise OptionError('The task names no environment. Pass env_args={"env_id": …}.')
        options = info.get("env_options") or {}
        row = {name: info[name] for name in _OF_EPISODE if name in info}
        return cls(info["env_id"], row=row, **options)

    @staticmethod
    def is_multithread_safe() -> bool:
        """Whether several environments may run in threads: yes, each in one at a time."""
        return True

    def reset(self) -> tuple[str, dict[str, Any]]:
        """Begin the episode of the task."""
        result = self._chat.reset(**reset_arguments(self._row))
        self._score = EpisodeScore()
        return text_of(result.observation.messages), dict(result.info)

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        """Take the action of a reply: a text, or a message with tool calls.

        Raises:
            EnvironmentFailure: The episode has failed.
        """
        result = self._chat.step(getattr(action, "action", action))  # rLLM has a class for it
        reward = self._score.add(result)
        info = {**result.info, "terminated": result.terminated, "truncated": result.truncated}
        return text_of(result.observation.messages), reward, result.done, info

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._chat.close()
