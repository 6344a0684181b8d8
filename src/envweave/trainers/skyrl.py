"""SkyRL-gym: any environment as a `BaseTextEnv`.

It is registered as `envweave.trainers.skyrl:SkyRLEnv` with `kwargs={"env_id": …}`; the name is the
`env_class` of rows of the data set, which may have a `seed`, a `task_id` and `options`.
The messages of the environment follow the row's prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envweave.conversation.view import INVALID
from envweave.errors import MissingExtraError, OptionError
from envweave.trainers.episodes import EpisodeScore, chat_of_one, joined, reset_arguments

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv
except ImportError as error:
    raise MissingExtraError(
        "envweave.trainers.skyrl needs SkyRL-gym. Install it with: pip install skyrl-gym"
    ) from error


class SkyRLEnv(BaseTextEnv):
    """One episode of an environment, as SkyRL makes, plays and closes it.

    `max_turns` of the row ends an episode. A failed one raises `EnvironmentFailure`.

    Args:
        env_config: May have an `env_id` and options, in place of the keywords.
        extras: The row.
        env_id: What `chat` takes.
        **options: The options of `chat` and `make`.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        *,
        env_id: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        given = {**(env_config or {}), **options}
        env_id = env_id if env_id is not None else given.pop("env_id", None)
        if env_id is None:
            raise OptionError('No environment is named. Register it with kwargs={"env_id": …}.')
        self._row = dict(extras or {})
        self.max_turns = self._row.get("max_turns")
        self._score = EpisodeScore()
        self._invalid = 0
        self._chat = chat_of_one(env_id, **given)

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin the episode; return the row's prompt with the first messages, and the info."""
        result = self._chat.reset(**reset_arguments(self._row))
        self.turns = 0
        return joined([*prompt, *self._chat.messages()]), dict(result.info)

    def step(self, action: str) -> dict[str, Any]:
        """Take the action of a reply; return the messages that answer it, and its reward.

        Raises:
            EnvironmentFailure: The episode has failed.
        """
        result = self._chat.step(action)
        self.turns += 1
        reward = self._score.add(result)
        self._invalid += "invalid_reply" in result.info
        is_cut = self.max_turns is not None and self.turns >= self.max_turns and not result.done
        return {
            "observations": [one.to_openai() for one in result.observation.messages],
            "reward": reward,
            "done": result.done or is_cut,
            "metadata": {**result.info, "terminated": result.terminated,
                         "truncated": bool(result.truncated or is_cut)},
        }  # fmt: skip

    def get_metrics(self) -> dict[str, Any]:
        """Return the metrics of the episode, which SkyRL averages."""
        return {"turns": self.turns, "episode_reward": self._score.total, INVALID: self._invalid}

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._chat.close()
