"""`ChatEnv` and `AsyncChatEnv`: an environment whose actions are replies of a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

from envweave.conversation.messages import OpenAIMessage
from envweave.conversation.view import (
    ChatOptions,
    ChatSource,
    ChatTurn,
    ChatView,
    answer_of,
    error_answer,
    is_awaitable,
)
from envweave.errors import ActionError, OptionError, ToolCallOpenError
from envweave.types import StepResult, Task


class _Chat:
    """What both have: the conversations.

    Attributes:
        id: The ID or name of the environment.
    """

    def __init__(self, env: Any, options: ChatOptions, described: ChatSource) -> None:
        self.env = env
        self.id = described.id
        self.possible_agents = described.possible_agents
        self._view = ChatView(described, options)

    def messages(self, agent_id: str | None = None) -> list[OpenAIMessage]:
        """Return the conversation so far, as in OpenAI's chat API.

        With several agents, each has its own.
        """
        return self._view.turn(agent_id).messages

    def tools(self, agent_id: str | None = None) -> list[dict[str, Any]]:
        """Return the tools that the next reply may call, as in OpenAI's chat API."""
        return self._view.turn(agent_id).tools

    def turn(self, agent_id: str | None = None) -> ChatTurn:
        """Return what a model needs to reply: the conversation, the tools, the last result."""
        return self._view.turn(agent_id)


@final
class ChatEnv(_Chat):
    """An environment as a conversation. Made by `chat`.

    Observations are `ChatObservation`s, which hold the messages since the last reply. An action
    is a reply: a text, a message of OpenAI's chat API, or a `ChatAction`; with several agents, a
    dict with one for each that must act.

    Attributes:
        env: The environment.
    """

    def __init__(
        self, env: Any, options: ChatOptions, described: ChatSource, *, is_owner: bool = False
    ) -> None:
        super().__init__(env, options, described)
        self._is_owner = is_owner

    def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> StepResult[Any]:
        """Begin an episode, and its conversation. See `Env.reset`."""
        result = self.env.reset(seed=seed, task=task, options=options, episode_id=episode_id)
        self._view.begin()
        return self._view.show(self._answered(result))

    def step(self, reply: Any) -> StepResult[Any]:
        """Take the action of a reply.

        A reply that is not an action costs a step: the result shows an error message, and
        `info["invalid_reply"]` says why. After `max_invalid` of them the episode is truncated.

        Raises:
            ActionError: It is not a reply at all, for example a number.
            ResetNeededError: No episode is running.
        """
        refused = self._view.read(reply)
        if refused is not None:
            return refused
        try:
            result = self.env.step(self._view.action)
        except ActionError as error:
            return self._view.refuse(error)
        self._view.accepted()
        return self._view.show(self._answered(result))

    def _answered(self, result: StepResult[Any]) -> StepResult[Any]:
        while (call := self._view.next_call(result)) is not None:
            value = self._view.run(call)
            if is_awaitable(value):
                value.close()
                raise ToolCallOpenError(
                    f"The function {call.name!r} is async. Use chat() with make_async()."
                )
            result = self.env.step(answer_of(call, value))
        return result

    def close(self) -> None:
        """Close the environment, if `chat` made it. May be called twice."""
        if self._is_owner:
            self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ChatEnv({self.id!r})"


@final
class AsyncChatEnv(_Chat):
    """An async environment, or a slot of a pool, as a conversation. See `ChatEnv`.

    Attributes:
        env: The environment.
    """

    async def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> StepResult[Any]:
        """Begin an episode, and its conversation. See `Env.reset`."""
        params: dict[str, Any] = {"seed": seed, "task": task, "episode_id": episode_id}
        if options is not None:
            params["options"] = options
        result = await self.env.reset(**params)
        self._view.begin()
        return self._view.show(await self._answered(result))

    async def step(self, reply: Any) -> StepResult[Any]:
        """Take the action of a reply. See `ChatEnv.step`."""
        refused = self._view.read(reply)
        if refused is not None:
            return refused
        try:
            result = await self.env.step(self._view.action)
        except ActionError as error:
            return self._view.refuse(error)
        self._view.accepted()
        return self._view.show(await self._answered(result))

    async def _answered(self, result: StepResult[Any]) -> StepResult[Any]:
        while (call := self._view.next_call(result)) is not None:
            value = self._view.run(call)
            if is_awaitable(value):
                try:
                    value = await value
                except Exception as error:  # noqa: BLE001 - the caller's function; as in `run`
                    value = error_answer(call, error)
            result = await self.env.step(answer_of(call, value))
        return result

    async def close(self) -> None:
        """Do nothing: the environment belongs to the caller."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the conversations, to go on in the environment that `memo` has for this one."""
        twin, last = copy.copy(self), self._view.last
        twin.env = memo.get(id(self.env), self.env)
        twin._view = self._view.copied(memo.get(id(last), last))  # noqa: SLF001 - its own copy
        memo[id(self)] = twin
        return twin

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncChatEnv({self.id!r})"


def refuse_late(env: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse keywords for an environment that was already made.

    Raises:
        OptionError: There is one.
    """
    if kwargs:
        raise OptionError(
            f"{next(iter(kwargs))!r} comes too late: {env!r} was already made. Pass it to make()."
        )
