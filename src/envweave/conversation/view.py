"""`ChatView`: the rules of an episode that is played as a conversation, without I/O.

`show` turns each result of the environment into one with messages; `read` turns replies into the
environment's action. A reply that is not an action becomes an error message and costs a step; the
environment does not learn of it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, final

from envweave.codec import AgentsSpec, Spec, to_plain
from envweave.conversation.messages import (
    ChatAction,
    ChatObservation,
    ChatTool,
    OpenAIMessage,
    TurnMessage,
)
from envweave.conversation.rendering import Render, is_chat_observation, render_messages
from envweave.conversation.replies import ReplyReader, read_message
from envweave.errors import ActionError, OptionError, ResetNeededError, ToolCallOpenError
from envweave.types import (
    AGENT,
    AutoResetReady,
    EpisodeEnd,
    NeedAction,
    StepResult,
    ToolCallRequest,
    ToolResult,
)

INVALID = "invalid_replies"
"""The metric that counts the replies of an episode that were not actions."""

Reply: TypeAlias = "str | ChatAction | Mapping[str, Any] | Truncate"
"""What a model said: a text, a message of OpenAI's chat API, or a `ChatAction`."""


@dataclass(frozen=True)
class Truncate:
    """In place of a reply: ends the episode as truncated, such as at a limit of tokens."""

    cause: str


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How a conversation looks. See `chat`."""

    system: str | None = None
    render: Render | None = None
    max_invalid: int | None = 5
    invalid_reward: float = 0.0
    use_tools: bool = False
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_invalid is not None and not _is_count(self.max_invalid):
            raise OptionError(f"max_invalid must be >= 1 or None, got {self.max_invalid!r}.")
        if self.render is not None and not (isinstance(self.render, str) or callable(self.render)):
            raise OptionError(
                f"render={self.render!r} is neither a function of the observation nor a format "
                "string."
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class ChatSource(Protocol):
    """What a view must know of an environment: an `Env`, `AsyncEnv` or `Pool`."""

    id: str

    @property
    def action_spec(self) -> Spec:
        """The spec of actions; by agent where there are several."""
        ...

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """Every agent that may ever take part; `None` for one unnamed agent."""
        ...


@dataclass(frozen=True)
class ChatTurn:
    """What a model needs to reply.

    Attributes:
        messages: The conversation so far, as in OpenAI's chat API.
        tools: The tools that it may call, as in OpenAI's chat API.
        result: The last result, whose `observation` holds the messages since the last reply.
        agent_id: Who must reply; `"agent"` if there is only one.
    """

    messages: list[OpenAIMessage]
    tools: list[dict[str, Any]]
    result: StepResult[Any]
    agent_id: str = AGENT


@final
class Conversation:
    """The messages of one agent in one episode."""

    def __init__(self, reader: ReplyReader, options: ChatOptions) -> None:
        self._reader = reader
        self._options = options
        self._open_calls: list[str] = []
        self._calls = 0
        self._instructions = "" if options.use_tools else reader.instructions
        system = "\n\n".join(text for text in (options.system, self._instructions) if text)
        self.messages = [TurnMessage(role="system", content=system)] if system else []
        self.tools: list[ChatTool] = reader.tools if options.use_tools else []
        self.invalid = 0

    def copied(self) -> Conversation:
        """Return a copy, which can go on differently."""
        twin = copy.copy(self)
        twin.messages = list(self.messages)
        return twin

    def reply(self, reply: ChatAction) -> ChatAction:
        """Add a reply, with an id for each of its calls, and return it."""
        calls = []
        for call in reply.tool_calls:
            self._calls += 1
            calls.append(dataclasses.replace(call, id=call.id or f"call_{self._calls}"))
        reply = dataclasses.replace(reply, tool_calls=calls)
        self._open_calls = [call.id for call in calls if call.id]
        self.messages.append(TurnMessage(role="assistant", content=reply.content, tool_calls=calls))
        return reply

    def show(self, observation: Any) -> ChatObservation:
        """Add what an observation shows, and return it."""
        messages, is_whole = render_messages(observation, self._options.render)
        if is_chat_observation(observation):
            self.tools = [ChatTool(**to_plain(tool)) for tool in observation.tools]
        if is_whole:
            self.messages, self._open_calls = [], []
        return self._add(messages, is_new=is_whole)

    def refuse(self, why: str) -> ChatObservation:
        """Add an error message about the last reply, and return it."""
        self.invalid += 1
        why = why if why.endswith((".", "!", "?")) else f"{why}."
        text = f"That is not a valid action. {why} {self._instructions}".rstrip()
        return self._add([TurnMessage(role="user", content=text)])

    def ask(self, call: ToolCallRequest) -> None:
        """Add what the environment asks its caller to run."""
        arguments = json.dumps(to_plain(call.arguments))
        text = (
            f"The environment asks you to run {call.name} with the arguments {arguments}. Reply "
            "with the result, and nothing else."
        )
        self._add([TurnMessage(role="user", content=text)])

    def _add(self, messages: list[TurnMessage], *, is_new: bool = False) -> ChatObservation:
        added = list(self._as_answers(messages))
        is_new = is_new or not any(one.role == "assistant" for one in self.messages)
        self.messages += added
        return ChatObservation(
            messages=list(self.messages) if is_new else added, tools=self.tools, is_new=is_new
        )

    def _as_answers(self, messages: list[TurnMessage]) -> Iterator[TurnMessage]:
        """Yield messages such that each call of the last reply is answered, as models require."""
        open_calls, self._open_calls = self._open_calls, []
        answered = {one.tool_call_id for one in messages}
        for call in open_calls:
            if call in answered:
                continue
            content = ""
            if messages and messages[0].role == "user" and isinstance(messages[0].content, str):
                content, messages = messages[0].content, messages[1:]
            yield TurnMessage(role="tool", content=content, tool_call_id=call)
        yield from messages


@final
class ChatView:
    """Presents the results of an environment as conversations, and reads replies as its actions.

    Attributes:
        action: The action that `read` made of the replies.
    """

    def __init__(self, env: ChatSource, options: ChatOptions) -> None:
        self._name = env.id
        self._options = options
        self._is_one = env.possible_agents is None
        spec = env.action_spec
        specs = {AGENT: spec} if not isinstance(spec, AgentsSpec) else spec.agents
        self._readers = {agent: ReplyReader(one) for agent, one in specs.items()}
        self._conversations: dict[str, Conversation] = {}
        self._last: StepResult[Any] | None = None
        self._asked: dict[str, Any] = {}  # the agents that must act, and their action masks
        self._waiting: dict[str, Any] = {}  # actions of agents, until the others' are valid too
        self._call: ToolCallRequest | None = None  # what the model is asked to answer
        self._earned: Any = None  # before the open tool call is answered
        self.action: Any = None

    def begin(self) -> None:
        """Begin the conversations of an episode."""
        self._conversations = {
            agent: Conversation(reader, self._options) for agent, reader in self._readers.items()
        }
        self._waiting, self._call, self._earned, self._last = {}, None, None, None

    def copied(self, last: StepResult[Any] | None) -> ChatView:
        """Return a copy, whose conversations can go on differently, with another last result."""
        twin = copy.copy(self)
        twin._last = last  # noqa: SLF001 - its own copy
        twin._conversations = {  # noqa: SLF001
            agent: conversation.copied() for agent, conversation in self._conversations.items()
        }
        twin._waiting = dict(self._waiting)  # noqa: SLF001
        return twin

    @property
    def last(self) -> StepResult[Any] | None:
        """The last result that was shown."""
        return self._last

    def conversation(self, agent_id: str | None) -> Conversation:
        """Return the conversation of an agent; that of the only one for `None`.

        Raises:
            ResetNeededError: No episode has begun.
            OptionError: There is no such agent, or several and none is named.
        """
        if not self._conversations:
            raise ResetNeededError(f"The conversation with {self._name!r} has not begun. Reset it.")
        name = AGENT if agent_id is None and self._is_one else agent_id
        if name not in self._conversations:
            known = ", ".join(self._conversations)
            raise OptionError(f"{self._name!r} has no agent {agent_id!r}. Known: {known}.")
        return self._conversations[name]

    def turn(self, agent_id: str | None = None) -> ChatTurn:
        """Return what an agent's model needs to reply."""
        conversation = self.conversation(agent_id)
        assert self._last is not None
        return ChatTurn(
            messages=[message.to_openai() for message in conversation.messages],
            tools=[tool.to_openai() for tool in conversation.tools],
            result=self._last,
            agent_id=AGENT if agent_id is None else agent_id,
        )

    def next_call(self, result: StepResult[Any]) -> ToolCallRequest | None:
        """Return the call that one of the caller's functions answers, if one is open.

        Raises:
            ToolCallOpenError: There is no such function, and several agents that could be asked.
        """
        calls = [] if result.done else result.tool_calls
        self._call = None
        if not calls:
            return None
        if calls[0].name in self._options.functions:
            self._earned = _add(self._earned, result.reward)
            return calls[0]
        if not self._is_one:
            raise ToolCallOpenError(
                f"{self._name!r} asks its caller to run {calls[0].name}(). Pass a function of that "
                "name in functions={…}."
            )
        self._call = calls[0]
        return None

    def run(self, call: ToolCallRequest) -> Any:
        """Call the caller's function; what it raises is the answer."""
        try:
            return self._options.functions[call.name](**call.arguments)
        except Exception as error:  # noqa: BLE001 - the caller's function; its error is an answer
            return error_answer(call, error)

    def show(self, result: StepResult[Any]) -> StepResult[Any]:
        """Return a result of the environment with messages in place of observations."""
        shown = result.copied()
        invalid = self._invalid
        shown.step_index += invalid
        shown.reward, self._earned = _add(self._earned, result.reward), None
        if self._is_one:
            one = self._conversations[AGENT]
            shown.observation = one.show(result.observation)
            if self._call is not None:
                before = len(one.messages)
                one.ask(self._call)
                shown.observation.messages += one.messages[before:]
            shown.info = _with_metric(result.info, one.invalid)
        else:
            self._show_agents(result, shown)
        if result.ready is not None:
            self._begin_next(result.ready, shown)
        return self._keep(shown)

    def _show_agents(self, result: StepResult[Any], shown: StepResult[Any]) -> None:
        is_next = result.ready is not None
        needs = {} if is_next else {need.agent_id: need.observation for need in result.needs}
        seen = result.observation if result.done else needs
        shown.observation = {
            agent: self._conversations[agent].show(seen[agent])
            if agent in seen
            else ChatObservation()
            for agent in result.observation
        }
        shown.info = {
            agent: _with_metric(info, self._conversations[agent].invalid)
            if agent in self._conversations
            else info
            for agent, info in result.info.items()
        }
        if not is_next:
            shown._needs = tuple(  # noqa: SLF001 - a copy of a result, which this module shapes
                NeedAction(shown.observation[n.agent_id], n.action_mask, n.reward, n.agent_id)
                for n in result.needs
            )

    def _begin_next(self, ready: AutoResetReady[Any], shown: StepResult[Any]) -> None:
        self.begin()
        first = ready.initial_obs
        if self._is_one:
            initial: Any = self._conversations[AGENT].show(first)
        else:
            initial = {agent: self._conversations[agent].show(one) for agent, one in first.items()}
            shown._needs = tuple(  # noqa: SLF001
                NeedAction(initial[n.agent_id], n.action_mask, n.reward, n.agent_id)
                for n in shown.needs
            )
        shown.ready = AutoResetReady(initial, ready.initial_info, ready.episode_id, ready.task_id)

    def _keep(self, shown: StepResult[Any]) -> StepResult[Any]:
        self._last = shown
        self._asked = {need.agent_id: need.action_mask for need in shown.needs}
        return shown

    @property
    def _invalid(self) -> int:
        """How many steps of this episode the environment knows nothing of."""
        return max((one.invalid for one in self._conversations.values()), default=0)

    def read(self, replies: Any) -> StepResult[Any] | None:
        """Read the replies; return a result if the environment need not be called.

        Raises:
            ResetNeededError: No episode is running.
            ActionError: They are not replies, or not those of the agents that must act.
        """
        if self._last is None or (self._last.done and self._last.ready is None):
            raise ResetNeededError(
                f"A reply to {self._name!r} with no conversation running. Call reset() first."
            )
        by_agent = self._by_agent(replies)
        cut = next((one for one in by_agent.values() if isinstance(one, Truncate)), None)
        if cut is not None:
            return self._refused({}, EpisodeEnd("truncated", None, cut.cause))
        messages = {agent: read_message(reply) for agent, reply in by_agent.items()}
        failures: dict[str, str] = {}
        for agent, message in messages.items():
            reply = self._conversations[agent].reply(message)
            if self._call is not None:
                self.action = ToolResult(self._call.call_id, reply.content)
                return None
            try:
                self._waiting[agent] = self._readers[agent].read(reply)
            except ActionError as error:
                failures[agent] = str(error)
        if failures:
            return self._refused(failures)
        self.action = self._waiting[AGENT] if self._is_one else dict(self._waiting)
        return None

    def _by_agent(self, replies: Any) -> dict[str, Any]:
        if isinstance(replies, Truncate):
            return {next(iter(self._asked)): replies}
        if self._is_one:
            return {AGENT: replies}
        if not isinstance(replies, Mapping) or replies.keys() != set(self._asked):
            given = list(replies) if isinstance(replies, Mapping) else type(replies).__name__
            raise ActionError(
                f"{self._name!r} waits for the replies of {', '.join(self._asked)}; got {given}."
            )
        return dict(replies)

    def accepted(self) -> None:
        """Note that the environment took the action."""
        self._waiting = {}

    def refuse(self, error: ActionError) -> StepResult[Any]:
        """Return the result for an action that the environment itself refused."""
        agents = list(self._waiting)
        self._waiting = {}
        return self._refused(dict.fromkeys(agents, str(error)))

    def _refused(
        self, failures: Mapping[str, str], end: EpisodeEnd | None = None
    ) -> StepResult[Any]:
        """Return the result of a step that the environment does not know of."""
        last = self._last
        assert last is not None
        before = self._invalid
        shown = {agent: self._conversations[agent].refuse(why) for agent, why in failures.items()}
        limit = self._options.max_invalid
        for agent in failures:
            if limit is not None and self._conversations[agent].invalid >= limit:
                who = "" if self._is_one else f" of {agent}"
                end = EpisodeEnd("truncated", "agent", f"{limit} replies{who} were not actions.")
        index = last.step_index + max(self._invalid - before, 1)
        about: dict[str, Any] = {
            "episode_id": last.episode_id if last.ready is None else last.ready.episode_id,
            "task_id": last.task_id if last.ready is None else last.ready.task_id,
            "step_index": index if last.ready is None else 1,
        }
        reward = self._options.invalid_reward
        if self._is_one:
            why = failures.get(AGENT)
            info: dict[str, Any] = {} if why is None else {"invalid_reply": why}
            if self._asked.get(AGENT) is not None:
                info["action_mask"] = self._asked[AGENT]
            result: StepResult[Any] = StepResult(
                shown.get(AGENT) or ChatObservation(tools=self._conversations[AGENT].tools),
                reward if failures else 0.0,
                truncated=end is not None,
                info=_with_metric(info, self._conversations[AGENT].invalid),
                end=end,
                **about,
            )
            return self._keep(result)
        agents = list(shown) if end is None else list(last.observation)
        result = StepResult(
            {agent: shown.get(agent) or ChatObservation() for agent in agents},
            {agent: reward if agent in failures else 0.0 for agent in agents},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, end is not None),
            {
                agent: _with_metric(
                    {"invalid_reply": failures[agent]} if agent in failures else {},
                    self._conversations[agent].invalid,
                )
                for agent in agents
            },
            []
            if end is not None
            else [NeedAction(one, self._asked[a], reward, a) for a, one in shown.items()],
            end=end,
            **about,
        )
        return self._keep(result)


def error_answer(call: ToolCallRequest, error: Exception) -> ToolResult:
    """Return the answer to a call whose function failed."""
    return ToolResult(call.call_id, error=f"{type(error).__name__}: {error}")


def answer_of(call: ToolCallRequest, value: Any) -> ToolResult:
    """Return the answer to a call."""
    return value if isinstance(value, ToolResult) else ToolResult(call.call_id, value)


def is_awaitable(value: Any) -> bool:
    """Whether the answer of a caller's function must be awaited."""
    return isinstance(value, Awaitable)


def _add(before: Any, reward: Any) -> Any:
    """Return the sum of two rewards, by agent where there are several; `None` is no reward."""
    if isinstance(before, Mapping) and isinstance(reward, Mapping):
        agents = dict.fromkeys([*before, *reward])
        return {agent: _add(before.get(agent), reward.get(agent)) for agent in agents}
    return reward if before is None else before if reward is None else before + reward


def _with_metric(info: Mapping[str, Any], invalid: int) -> dict[str, Any]:
    return {**info, "metrics": {**(info.get("metrics") or {}), INVALID: invalid}}
