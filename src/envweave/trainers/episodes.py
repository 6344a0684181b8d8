"""What the shims for trainers share: conversations of one agent, rows of data sets, scores, text.

A trainer that knows no failed episode must not get one: `EpisodeScore` raises instead of returning
a reward, and the trainer drops the sample.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from envweave.api.chat import chat
from envweave.api.make import make_async
from envweave.conversation import ChatEnv, ChatOptions, ChatTurn, Truncate, TurnMessage
from envweave.errors import DefinitionError, EnvironmentFailure
from envweave.types import StepResult, Task


def chat_of_one(env: Any, **options: Any) -> Any:
    """Return `chat` of an environment, for a trainer that plays with one agent.

    Raises:
        DefinitionError: The environment has several agents.
    """
    view = chat(env, **options)
    if view.possible_agents is not None:
        if isinstance(view, ChatEnv):
            view.close()
        raise several_agents(view.id)
    return view


def several_agents(name: str) -> DefinitionError:
    """Return the error for an environment with several agents."""
    return DefinitionError(f"{name!r} has several agents. This trainer plays with one.")


def reset_arguments(row: Any) -> dict[str, Any]:
    """Return what a row of a data set says of an episode: `seed`, `task`, `options`.

    A string is the id of a task, and an integer is a seed. Of a mapping or an object, `task_id` is
    another name of `task`, and every other field is left to the trainer.
    """
    if row is None:
        return {}
    if isinstance(row, str | Task):
        return {"task": row}
    if isinstance(row, int):
        return {"seed": row}
    fields = row if isinstance(row, Mapping) else vars(row)
    task = fields.get("task") or fields.get("task_id")
    given = {"seed": fields.get("seed"), "task": task, "options": fields.get("options")}
    return {name: value for name, value in given.items() if value is not None}


@final
class EpisodeScore:
    """Adds up the rewards of an episode.

    Attributes:
        total: The sum of its rewards; `None` while nothing is scored.
    """

    def __init__(self) -> None:
        self.total: float | None = None

    def add(self, result: StepResult[Any]) -> float:
        """Add a step, and return its reward; 0 for a step that is not scored.

        Raises:
            EnvironmentFailure: The episode has failed, or is over and was never scored. It has
                no reward and must not be trained on.
        """
        end = result.end
        if end is not None and not end.valid:
            raise EnvironmentFailure(
                f"The episode has failed ({end.reason}, caused by the {end.blame}) and has no "
                f"reward: {end.cause}"
            )
        reward = result.reward
        if reward is not None and math.isfinite(reward):
            self.total = float(reward) + (self.total or 0.0)
            return float(reward)
        if result.done and self.total is None:
            raise EnvironmentFailure("The episode is over and has no reward: it is not scored.")
        return 0.0


def text_of(messages: Iterable[TurnMessage]) -> str:
    """Return the text of messages, for a form without roles and images."""
    texts = []
    for message in messages:
        content = message.content
        if not isinstance(content, str):
            content = "\n".join(part["text"] for part in content if part.get("type") == "text")
        texts.append(content)
    return "\n\n".join(text for text in texts if text)


def joined(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as many chat templates require: one system message, and roles in turn."""
    merged: list[dict[str, Any]] = []
    for message in sorted(messages, key=lambda one: one["role"] != "system"):
        last = merged[-1] if merged else {}
        if _is_plain(last) and _is_plain(message) and last["role"] == message["role"]:
            texts = last["content"], message["content"]
            merged[-1] = {"role": last["role"], "content": "\n\n".join(filter(None, texts))}
        else:
            merged.append(dict(message))
    return merged


def _is_plain(message: Mapping[str, Any]) -> bool:
    return message.keys() == {"role", "content"} and isinstance(message["content"], str)


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """An episode that was played to its end.

    Attributes:
        last: The result of its last step.
        reward: The sum of its rewards.
        turns: The number of replies.
    """

    last: StepResult[Any]
    reward: float
    turns: int


async def play_episode(
    env_id: Any,
    row: Any,
    reply: Callable[[ChatTurn], Awaitable[Any]],
    max_turns: int | None,
    options: Mapping[str, Any],
) -> ScoredEpisode:
    """Make an environment, play the episode of a row with a model's replies, and close it.

    Args:
        env_id: What `make_async` takes.
        row: As in `reset_arguments`.
        reply: Returns the reply to a turn.
        max_turns: Truncate the episode after this many replies; `None` for any number.
        options: The options of `chat` and `make_async`.

    Raises:
        EnvironmentFailure: The episode has failed, or is not scored.
        DefinitionError: The environment has several agents.
    """
    of_chat = {name: one for name, one in options.items() if name in _OF_CHAT}
    of_make = {name: one for name, one in options.items() if name not in _OF_CHAT}
    score, turns = EpisodeScore(), 0
    async with make_async(env_id, **of_make) as env:
        view = chat_of_one(env, **of_chat)
        result = await view.reset(**reset_arguments(row))
        while not result.done:
            if turns == max_turns:
                result = await view.step(Truncate(f"The episode had {turns} turns."))
            else:
                result = await view.step(await reply(view.turn()))
                turns += 1
            score.add(result)
    assert score.total is not None  # without a score, `add` raises at the end
    return ScoredEpisode(result, score.total, turns)


_OF_CHAT = frozenset(ChatOptions.__dataclass_fields__)
