"""`ReplyAgent`: plays episodes with the replies of a function. `ChatAgent`: with those of a model.

Both see an environment through the chat view, and each episode has a conversation of its own.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias, final

from envweave.agents.chat_model import ChatModel, ContextLengthError
from envweave.conversation import AsyncChatEnv, ChatOptions, ChatTurn, Truncate
from envweave.conversation.view import ChatSource
from envweave.errors import OptionError
from envweave.rollouts import Decision
from envweave.types import StepResult

ReplyFunction: TypeAlias = Callable[[ChatTurn], Any]
"""Takes what a model needs, and returns its reply or a `Decision` with it, perhaps awaited."""


@final
class ReplyAgent:
    """An agent for `rollout` that replies to messages, one conversation for each episode.

    A reply is a text, a message of OpenAI's chat API, a `ChatAction`, or `Truncate(cause)` to end
    the episode; in a `Decision` it has data to record, such as `Tokens`. With several agents the
    function is called for each that must act, at the same time.

    Args:
        reply: The function.
        **options: How conversations look: `system`, `render`, `max_invalid`, `invalid_reward`,
            `use_tools` and `functions` of `chat`.
    """

    def __init__(self, reply: ReplyFunction, **options: Any) -> None:
        if not callable(reply):
            raise OptionError(f"reply={reply!r} cannot be called. Pass a function of a ChatTurn.")
        self._reply = reply
        self._options = read_options(options)

    def begin(
        self, env: Any, described: ChatSource
    ) -> tuple[AsyncChatEnv, Callable[[StepResult[Any]], Awaitable[Decision]]]:
        """Return the view of an environment for one episode, and the agent that plays it."""
        chat = AsyncChatEnv(env, self._options, described)
        return chat, _EpisodeReplies(chat, self._reply)


@final
class _EpisodeReplies:
    """The agent of one episode; a deep copy of it goes on in a copy of the conversation."""

    def __init__(self, chat: AsyncChatEnv, reply: ReplyFunction) -> None:
        self._chat = chat
        self._reply = reply

    def __deepcopy__(self, memo: dict[int, Any]) -> _EpisodeReplies:
        return _EpisodeReplies(copy.deepcopy(self._chat, memo), self._reply)

    async def __call__(self, result: StepResult[Any]) -> Decision:
        chat = self._chat
        if chat.possible_agents is None:
            return await self._decide(chat.turn())
        turns = [chat.turn(need.agent_id) for need in result.needs]
        made = await asyncio.gather(*map(self._decide, turns))
        by_agent = {turn.agent_id: one for turn, one in zip(turns, made, strict=True)}
        cut = next((one for one in made if isinstance(one.action, Truncate)), None)
        replies = {agent: one.action for agent, one in by_agent.items()}
        return Decision(
            replies if cut is None else cut.action,
            {agent: one.extra for agent, one in by_agent.items()},
        )

    async def _decide(self, turn: ChatTurn) -> Decision:
        answer = self._reply(turn)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer if type(answer) is Decision else Decision(answer)


@final
class ChatAgent:
    """An agent for `rollout` that asks a model behind any OpenAI-compatible URL.

    As many requests run at the same time as episodes do. A server that is busy or fails is asked
    again, later each time. `EpisodeStep.extra` holds `prompt_tokens`, `completion_tokens` and
    `finish_reason` of each reply, and `tokens` (`Tokens`) where the server returns ids. A
    conversation that is too long for the model ends its episode as truncated. Needs the extra
    `http`.

        agent = ChatAgent("http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B", temperature=1.0)
        episodes = await ew.rollout(pool, agent, episodes=64)

    Args:
        base_url: Up to and including `/v1`; `$OPENAI_BASE_URL` by default.
        model: The name of the model there.
        api_key: Sent as a bearer token; `$OPENAI_API_KEY` by default, and none if that is not set.
        system: The first message. The form of replies is added to it, if they must have one.
        render: How to show an observation; see `chat`.
        max_invalid: Truncate an episode after this many invalid replies.
        invalid_reward: What such a reply earns.
        use_tools: Whether the model is offered the actions as tools. The tools of an environment
            that has some itself are always offered.
        functions: Functions that answer the tool calls of the environment, by name.
        timeout_s: How long one answer may take.
        attempts: How often to try before giving up, if the server is busy or fails.
        **sampling: Further fields of every request, such as `temperature` and `max_tokens`.

    Attributes:
        model: The client.
        requests: How many replies there were.
        prompt_tokens: How many tokens the model read in all.
        completion_tokens: How many it wrote in all.
    """

    def __init__(
        self,
        base_url: str = "",
        model: str = "default",
        *,
        api_key: str | None = None,
        system: str | None = None,
        render: Callable[[Any], Any] | str | None = None,
        max_invalid: int | None = 5,
        invalid_reward: float = 0.0,
        use_tools: bool = False,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        timeout_s: float = 120.0,
        attempts: int = 4,
        **sampling: Any,
    ) -> None:
        self.model = ChatModel(model, base_url, api_key, sampling, timeout_s, attempts)
        self._replies = ReplyAgent(
            self.reply,
            system=system,
            render=render,
            max_invalid=max_invalid,
            invalid_reward=invalid_reward,
            use_tools=use_tools,
            functions=functions or {},
        )
        self.requests = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def begin(
        self, env: Any, described: ChatSource
    ) -> tuple[AsyncChatEnv, Callable[[StepResult[Any]], Awaitable[Decision]]]:
        """Return the view of an environment for one episode, and the agent that plays it."""
        return self._replies.begin(env, described)

    async def reply(self, turn: ChatTurn) -> Decision:
        """Return the model's reply to a turn of `chat`, with its counts of tokens.

        Raises:
            ModelError: The server refused, or still failed at the last attempt.
        """
        try:
            completion = await self.model.complete(turn.messages, turn.tools)
        except ContextLengthError as error:
            return Decision(Truncate(str(error)))
        self.requests += 1
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        extra: dict[str, Any] = {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "finish_reason": completion.finish_reason,
        }
        if completion.tokens is not None:
            extra["tokens"] = completion.tokens
        return Decision(completion.reply, extra)

    async def __aenter__(self) -> Self:
        """Keep the connections until the block ends, also between replies."""
        await self.model.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.model.__aexit__(kind, error, trace)


def read_options(options: Mapping[str, Any]) -> ChatOptions:
    """Return the options of a conversation.

    Raises:
        OptionError: One is unknown, or not valid.
    """
    known = ChatOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise OptionError(f"{name!r} is not an option of a chat. Known: {', '.join(known)}.")
    return ChatOptions(**options)
