"""Turn code that calls a language model into an environment whose steps are the model calls.

A rollout runs as an asyncio task. When it calls the model, the conversation becomes the caller's
observation, and the rollout waits for the caller's next action, which is the model's reply. The
result of the task is the end of the episode, with its score.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from envweave.environment import Environment, Interface
from envweave.errors import EnvironmentFailure
from envweave.types import Action, Observation, Task, Tasks


@dataclass(kw_only=True)
class ChatToolCall:
    """A call of a tool, as the model makes it.

    Attributes:
        name: Which tool.
        arguments: Its arguments, as a dict or as the JSON text that the model wrote.
        id: Names the call, so that its result can be matched; made up where it is left out.
    """

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    id: str | None = None

    def arguments_json(self) -> str:
        """Return the arguments as JSON text; a text is left as the model wrote it."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(kw_only=True)
class TurnMessage:
    """One message of a conversation.

    Attributes:
        role: `"system"`, `"user"`, `"assistant"` or `"tool"`.
        content: Its text, or a list of parts (text, images) as in OpenAI's API.
        tool_calls: The tools that an assistant's message calls.
        tool_call_id: Which call a tool's message answers.
    """

    role: str
    content: str | list[dict[str, Any]] = ""
    tool_calls: list[ChatToolCall] = field(default_factory=list)
    tool_call_id: str | None = None

    @classmethod
    def from_openai(cls, message: Mapping[str, Any]) -> TurnMessage:
        """Read a message of OpenAI's chat API, its tool calls nested in `function` or flat."""
        calls = []
        for call in message.get("tool_calls") or ():
            inner = call.get("function") or call
            calls.append(
                ChatToolCall(
                    name=inner["name"], arguments=inner.get("arguments") or "{}", id=call.get("id")
                )
            )
        return cls(
            role=message["role"],
            content=message.get("content") or "",
            tool_calls=calls,
            tool_call_id=message.get("tool_call_id"),
        )


@dataclass(kw_only=True)
class ChatTool:
    """A tool that may be called: its name, what it does, and the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class ChatObservation(Observation):
    """What the model is shown.

    Attributes:
        messages: The messages since the last action. The whole conversation if `is_new`.
        tools: The tools that the next action may call.
        is_new: Whether `messages` replaces all earlier messages: after a reset, and where the
            environment changed what was said before.
        agent: Whose turn it is, where the environment has several roles. All are the caller's.
    """

    messages: list[TurnMessage] = field(default_factory=list)
    tools: list[ChatTool] = field(default_factory=list)
    is_new: bool = False
    agent: str = ""


@dataclass(kw_only=True)
class ChatAction(Action):
    """The model's reply: a text, calls of tools, or both."""

    content: str = ""
    tool_calls: list[ChatToolCall] = field(default_factory=list)

    def to_openai(self) -> dict[str, Any]:
        """Return the reply as an assistant's message of OpenAI's chat API."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json()},
                }
                for call in self.tool_calls
            ]
        return message


Ask: TypeAlias = Callable[[list[TurnMessage], list[ChatTool], str], Awaitable[ChatAction]]
"""Ask the model: the whole conversation, the tools, and the role, for its reply."""


@dataclass(frozen=True)
class RolloutScore:
    """How a rollout ended.

    Attributes:
        reward: The score of the whole episode.
        parts: What the score is made of; they sum to it.
        metrics: Other figures.
        messages: What was said after the model's last reply.
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
        name: What to call it in messages.
        splits: How many tasks there are in each split.
    """

    name: str
    splits: Mapping[str, int]

    @abstractmethod
    async def run(self, split: str, index: int, ask: Ask) -> RolloutScore:
        """Play one episode. It is cancelled where the caller begins another one.

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
        self._said: dict[str, list[TurnMessage]] = {}  # the conversation so far, by role
        self._calls = 0  # tool calls so far

    async def reset(self, *, task: Task, seed: int | None = None) -> ChatObservation:
        """Begin a rollout of a task, and show what its first call of the model shows.

        A seed chooses the task, where the caller names none; the rollout itself takes no seed.
        """
        del seed
        await self._abandon()
        self._turns, self._said, self._calls = asyncio.Queue(), {}, 0
        index = int(task.id.rpartition("-")[2])
        self._episode = asyncio.create_task(self._rollouts.run(task.split, index, self._ask))
        observation = await self._next()
        if observation.done or observation.truncated:
            stop = observation.metadata["stop_condition"]
            raise EnvironmentFailure(f"The rollout ended ({stop}) before it called the model once.")
        return observation

    async def step(self, action: str | ChatAction) -> ChatObservation:
        """Answer the call of the model, and show the next one or the end."""
        assert self._turn is not None
        reply = self._turn.reply
        if not reply.done():  # otherwise a time limit has already ended the rollout
            reply.set_result(self._read(action))
        return await self._next()

    def _read(self, action: str | ChatAction) -> ChatAction:
        """Return an action with a name for each of its tool calls."""
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
        said, self._said[agent] = self._said.get(agent), messages
        length = 0 if said is None else len(said)
        goes_on = (
            said is not None
            and messages[:length] == said
            and len(messages) > length
            and messages[length].role == "assistant"
        )
        observation = ChatObservation(
            reward=0.0,
            messages=messages[length + 1 :] if goes_on else messages,
            tools=tools,
            is_new=not goes_on,
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
