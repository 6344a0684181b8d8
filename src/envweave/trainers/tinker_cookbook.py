"""Tinker's cookbook: a `MessageEnv` and an `EnvGroupBuilder`.

A group builder holds an ID and options, never a connection, so that it pickles; its environments
open where they are used. Tokens and limits are the cookbook's (`EnvFromMessageEnv`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.renderers.base import Message, ToolCall
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StopReason
from tinker_cookbook.tokenizer_utils import get_tokenizer

from envweave.api import make_async
from envweave.errors import SeedError
from envweave.trainers.episodes import EpisodeScore, chat_of_one


@final
class TinkerEnv(MessageEnv):
    """One episode of an environment for the cookbook, as messages.

    An episode that fails through no fault of the model raises, so that it has no reward: the
    strategy `RetryOnFailure` plays it again in a fresh environment.

    Args:
        env: What `make_async` takes.
        task_id: The task of the episode.
        seed: The seed of the episode.
        options: Options of `chat`.
        make: Options of `make_async`, such as `backend`.
    """

    def __init__(
        self,
        env: Any,
        task_id: str | None = None,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        make: dict[str, Any] | None = None,
    ) -> None:
        self._env, self._options, self._make = env, options or {}, make or {}
        self._about = {"task": task_id, "seed": seed}
        self._opened: Any = None
        self._score = EpisodeScore()
        self.example_id = task_id if task_id is not None else f"seed {seed}"

    async def initial_observation(self) -> list[Message]:
        """Begin the episode.

        Raises:
            DefinitionError: The environment has several agents.
        """
        self._opened = await asyncio.to_thread(make_async, self._env, **self._make)
        self._chat = chat_of_one(self._opened, **self._options)
        try:
            await self._chat.reset(**self._about)
        except SeedError:  # without randomness all episodes are the same
            await self._chat.reset(task=self._about["task"])
        return _messages(self._chat.messages())

    async def step(self, message: Message) -> MessageStepResult:
        """Take the action of a reply.

        Raises:
            EnvironmentFailure: The episode failed through no fault of the model, or is over and was
                never scored.
        """
        result = await self._chat.step(_reply(message))
        if result.done:
            await self.close()
        reward = self._score.add(result)
        numbers = {k: v for k, v in result.metrics.items() if isinstance(v, int | float)}
        if result.done:
            stop = StopReason.MAX_TURNS if result.truncated else StopReason.COMPLETED
            numbers[f"stop/{stop}"] = 1.0
        return MessageStepResult(
            reward=reward,
            episode_done=result.done,
            next_messages=_messages(self._chat.messages()),
            metrics={name: float(one) for name, one in numbers.items()},
            logs={} if result.task_id is None else {"task_id": result.task_id},
        )

    async def close(self) -> None:
        """Close the environment, if it was opened. May be called twice."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()


@dataclass
class TinkerGroup(EnvGroupBuilder):
    """A group of episodes about one task, or from one seed. Pickles."""

    env: Any
    model_name: str
    renderer_name: str
    group_size: int
    task_id: str | None = None
    seed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    make: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made: list[TinkerEnv] = []

    async def make_envs(self) -> Sequence[Env]:
        """Return environments that open when their episodes begin."""
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name))
        made = [
            TinkerEnv(self.env, self.task_id, self.seed, self.options, self.make)
            for _ in range(self.group_size)
        ]
        self._made += made
        return [EnvFromMessageEnv(renderer, one, **self.limits) for one in made]

    async def cleanup(self) -> None:
        """Close what is still open."""
        made, self._made = self._made, []
        await asyncio.gather(*(one.close() for one in made), return_exceptions=True)

    def logging_tags(self) -> list[str]:
        """Return the name of the environment."""
        return [self.env if isinstance(self.env, str) else type(self.env).__name__]


def _messages(messages: list[dict[str, Any]]) -> list[Message]:
    """Return messages as renderers take them: calls as objects, images as parts."""
    read = []
    for message in messages:
        made = {**message, "content": _content(message["content"])}
        if "tool_calls" in message:
            made["tool_calls"] = [ToolCall.model_validate(one) for one in message["tool_calls"]]
        read.append(made)
    return read


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    return [
        {"type": "image", "image": part["image_url"]["url"]} if "image_url" in part else part
        for part in content
    ]


def _reply(message: Message) -> dict[str, Any]:
    """Return a message as in OpenAI's API; a call that the renderer could not parse is text."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if part.get("type") == "text")
    calls = [one.model_dump() for one in message.get("tool_calls") or ()]
    return {"role": "assistant", "content": content, "tool_calls": calls}
