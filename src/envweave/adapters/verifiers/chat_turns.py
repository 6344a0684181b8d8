"""Turn code that calls a language model into an environment whose steps are the model calls.

A rollout runs as an asyncio task. When it calls the model, the conversation becomes the caller's
observation, and the rollout waits for the caller's next action, which is the model's reply. The
result of the task is the end of the episode, with its score.
"""

from __future__ import annotations

import asyncio
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from envweave.conversation.messages import ChatAction, ChatObservation, ChatTool, TurnMessage
from envweave.environment import Environment, Interface
from envweave.errors import EnvironmentFailure
from envweave.types import Task, Tasks

Ask: TypeAlias = Callable[[list[TurnMessage], list[ChatTool], str], Awaitable[ChatAction]]
"""Ask the model: the whole conversation, the tools, and the role, for its reply."""


@dataclass(frozen=True)
class RolloutScore:
    """How a rollout ended.

    Attributes:
        reward: The score of the whole episode.
        parts: What the score is made of; they sum to it.
        metrics: Other figures.
        messages: The messages after the model's last reply.
        truncated: Whether a limit ended it.
        stop: The name of the condition that ended it.
    """

    reward: float
    parts: Mapping[str, float]
    metrics: Mapping[str, float]
    messages: list[TurnMessage]
    truncated: bool
    stop: str | None


class Rollouts(ABC):
    """Code that plays whole episodes, one at a time, and asks a model on the way.

    Attributes:
        name: Its name in messages.
        splits: How many tasks there are in each split.
    """

    name: str
    splits: Mapping[str, int]

    @abstractmethod
    async def run(self, split: str, index: int, ask: Ask) -> RolloutScore:
        """Play one episode. It is cancelled if the caller begins another one.

        Raises:
            Exception: The environment failed, and the episode has no score.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Called once, with no episode running."""


@dataclass
class _ModelTurn:
    """A call of the model that waits for its reply."""

    observation: ChatObservation
    reply: asyncio.Future[ChatAction]


@final
class ChatEnvironment(Environment):
    """An environment whose episodes are rollouts, driven turn by turn. See `from_verifiers`."""

    deterministic = False

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        # A task holds only a position, so that rows and their answers stay in the environment.
        self.tasks = Tasks(
            {
                split: [Task(f"{split}-{index}", split) for index in range(length)]
                for split, length in rollouts.splits.items()
            }
        )
        self._episode: asyncio.Task[RolloutScore] | None = None
        self._turns: asyncio.Queue[_ModelTurn] = asyncio.Queue()
        self._turn: _ModelTurn | None = None
        self._conversations: dict[str, list[TurnMessage]] = {}  # the conversation so far, by role
        self._calls = 0  # tool calls so far

    async def reset(self, *, task: Task, seed: int | None = None) -> ChatObservation:
        """Begin a rollout of a task, and return the observation of its first model call.

        A seed chooses the task if the caller names none; the rollout itself takes no seed.
        """
        del seed
        await self._abandon()
        self._turns, self._conversations, self._calls = asyncio.Queue(), {}, 0
        index = int(task.id.rpartition("-")[2])
        self._episode = asyncio.create_task(self._rollouts.run(task.split, index, self._ask))
        observation = await self._next()
        if observation.done or observation.truncated:
            stop = observation.metadata["stop_condition"]
            raise EnvironmentFailure(f"The rollout ended ({stop}) before it called the model once.")
        return observation

    async def step(self, action: str | ChatAction) -> ChatObservation:
        """Answer the model call, and return the observation of the next one, or the end."""
        assert self._turn is not None
        reply = self._turn.reply
        if not reply.done():  # otherwise a time limit has already ended the rollout
            reply.set_result(self._read(action))
        return await self._next()

    def _read(self, action: str | ChatAction) -> ChatAction:
        """Return an action with an id for each of its tool calls."""
        if isinstance(action, str):
            return ChatAction(content=action)
        calls = []
        for call in action.tool_calls:
            self._calls += 1
            calls.append(dataclasses.replace(call, id=call.id or f"call_{self._calls}"))
        return dataclasses.replace(action, tool_calls=calls)

    async def close(self) -> None:
        """Cancel the rollout, if one is running, and free everything."""
        await self._abandon()
        await self._rollouts.close()

    def describe(self) -> Interface:
        """Describe the environment by its own name."""
        return dataclasses.replace(super().describe(), name=self._rollouts.name)

    async def _ask(
        self, messages: list[TurnMessage], tools: list[ChatTool], agent: str
    ) -> ChatAction:
        before, self._conversations[agent] = self._conversations.get(agent), messages
        length = 0 if before is None else len(before)
        continues = (
            before is not None
            and messages[:length] == before
            and len(messages) > length
            and messages[length].role == "assistant"
        )
        observation = ChatObservation(
            reward=0.0,
            messages=messages[length + 1 :] if continues else messages,
            tools=tools,
            is_new=not continues,
            agent=agent,
        )
        reply: asyncio.Future[ChatAction] = asyncio.get_running_loop().create_future()
        await self._turns.put(_ModelTurn(observation, reply))
        return await reply

    async def _next(self) -> ChatObservation:
        """Wait for the next turn, or for the end."""
        assert self._episode is not None
        turn = asyncio.ensure_future(self._turns.get())
        try:
            await asyncio.wait({turn, self._episode}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.cancel()
        if not self._episode.done():
            self._turn = turn.result()
            return self._turn.observation
        score = self._episode.result()
        return ChatObservation(
            messages=score.messages,
            reward=score.reward,
            done=not score.truncated,
            truncated=score.truncated,
            metadata={
                "reward_parts": dict(score.parts),
                "metrics": dict(score.metrics),
                "stop_condition": score.stop,
            },
        )

    async def _abandon(self) -> None:
        """Cancel the rollout and wait until it has cleaned up."""
        episode, self._episode = self._episode, None
        if episode is None or episode.done():
            return
        episode.cancel()
        await asyncio.wait({episode})
        if not episode.cancelled():
            episode.exception()  # marks it as retrieved, in case its cleanup failed


def after_last_reply(messages: Iterable[Mapping[str, Any]]) -> list[TurnMessage]:
    """Return those messages of OpenAI's chat API that follow the last one of the assistant."""
    listed = list(messages)
    replies = [index for index, one in enumerate(listed) if one["role"] == "assistant"]
    return [TurnMessage.from_openai(one) for one in listed[replies[-1] + 1 :]] if replies else []
