"""ART: an episode as a rollout function, which returns a trajectory.

The model's choices are kept as its server returned them, with their logprobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from envweave.conversation import ChatTurn
from envweave.conversation.view import INVALID
from envweave.errors import MissingExtraError
from envweave.trainers.episodes import play_episode

try:
    import art
except ImportError as error:
    raise MissingExtraError(
        "envweave.trainers.art needs ART. Install it with: pip install openpipe-art"
    ) from error


def art_rollout(
    env_id: Any,
    *,
    max_turns: int | None = None,
    sampling: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a function that plays one episode with a model of ART.

    Its second argument begins the episode: a dict or object with `seed`, `task_id` and `options`,
    the id of a task, or a seed. A failed episode raises `EnvironmentFailure`, which ART
    collects in the group's `exceptions` and does not train on.

    Args:
        env_id: What `make_async` takes.
        max_turns: Truncate an episode after this many replies; `None` for any number.
        sampling: More fields of every request, such as `max_tokens`.
        **options: The options of `chat` and `make_async`.
    """

    async def rollout(model: Any, scenario: Any) -> Any:
        client = model.openai_client()
        seen: list[Any] = []
        tools: list[dict[str, Any]] = []

        async def reply(turn: ChatTurn) -> dict[str, Any]:
            observation = turn.result.observation
            if observation.is_new:
                seen.clear()
            seen.extend(one.to_openai() for one in observation.messages)
            tools[:] = turn.tools
            completion = await client.chat.completions.create(
                model=model.get_inference_name(),
                messages=turn.messages,
                **({"tools": turn.tools} if turn.tools else {}),
                **(sampling or {}),
            )
            seen.append(completion.choices[0])
            message: dict[str, Any] = completion.choices[0].message.model_dump(exclude_none=True)
            return message

        played = await play_episode(env_id, scenario, reply, max_turns, options)
        last = played.last
        return art.Trajectory(
            messages_and_choices=seen,
            tools=tools or None,
            reward=played.reward,
            metrics={
                "turns": played.turns,
                "truncated": bool(last.truncated),
                INVALID: last.info["metrics"][INVALID],
            },
            metadata={"episode_id": str(last.episode_id), "task_id": str(last.task_id)},
        )

    return rollout
