"""AReaL: an episode as an agent workflow, which gets an OpenAI-compatible URL and returns a reward.

AReaL itself is not imported. The agent holds an ID and options, so it can be sent to AReaL's
subprocesses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

from envweave.agents import ChatAgent
from envweave.conversation import ChatTurn
from envweave.trainers.episodes import play_episode


@final
class ArealAgent:
    """Plays one episode for each row: `seed`, `task_id` and `options` of a row begin it.

    Args:
        env_id: What `make_async` takes.
        model: The name of the model in requests.
        max_turns: Truncate an episode after this many replies; `None` for any number.
        sampling: More fields of every request, such as `temperature`.
        **options: The options of `chat` and `make_async`.
    """

    def __init__(
        self,
        env_id: Any,
        *,
        model: str = "default",
        max_turns: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._env_id = env_id
        self._model = model
        self._max_turns = max_turns
        self._sampling = dict(sampling or {})
        self._options = options

    async def run(
        self,
        data: Mapping[str, Any],
        *,
        base_url: str | None = None,
        http_client: Any = None,  # noqa: ARG002 - AReaL's form; connections are our own
        api_key: str | None = None,
    ) -> float:
        """Play the episode of a row with the model at `base_url`, and return its reward.

        Raises:
            EnvironmentFailure: The episode has failed. AReaL then rejects the trajectory.
        """
        base_url = base_url or os.environ.get("OPENAI_BASE_URL", "")
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
        agent = ChatAgent(base_url, self._model, api_key=api_key, **self._sampling)

        async def reply(turn: ChatTurn) -> Any:
            return (await agent.reply(turn)).action

        async with agent:
            played = await play_episode(self._env_id, data, reply, self._max_turns, self._options)
        return played.reward
