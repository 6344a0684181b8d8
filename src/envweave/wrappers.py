"""Wrappers: change actions, timing, limits or text of an environment from the outside."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Literal, TypedDict, final

from envweave.codec import Spec
from envweave.codec.containers import DataclassSpec, DictSpec, PydanticSpec
from envweave.codec.records import StructSpec
from envweave.codec.scalars import is_text
from envweave.codec.spec import AnySpec
from envweave.environment import Environment, Interface
from envweave.environment.base import AttributesCopy, copy_attributes, paste_attributes
from envweave.environment.introspection import by_agent, for_one, read_spec
from envweave.errors import (
    ActionError,
    BadReturnError,
    DefinitionError,
    OptionError,
    SpecError,
    format_error,
    suggest,
)
from envweave.session.results import read_agents_reset, read_agents_step, read_reset, read_step
from envweave.types import (
    EpisodeEnd,
    LogEvent,
    Observation,
    ResetResult,
    StepResult,
    ToolCallRequest,
    ToolResult,
)

HOOKS = ("before_step", "after_reset", "after_step", "after_answer")
"""The methods that a wrapper may override to change what goes in and comes out."""

_WISHED = ("before_reset", "before_answer")
"""Hooks that there are not, and that authors look for."""


def _is_like_a_hook(name: str) -> bool:
    return name.startswith(("before_", "after_")) or bool(
        difflib.get_close_matches(name, (*HOOKS, *_WISHED), n=1, cutoff=0.8)
    )


_FIXED = ("environment", "deterministic", "tasks", "_interface", "_read_reset", "_read_step")
"""The attributes of a wrapper that are not part of an episode's state."""


class Wrapper(Environment):
    """Wraps another environment, sync or async, for one agent or many.

    Override its hooks. They are plain functions, also if the environment inside is async:

    - `before_step(action)` returns the action to pass on;
    - `after_reset(result)` returns the start to show;
    - `after_step(result)` returns the outcome to show;
    - `after_answer(result)` returns the outcome to show after the answer to a tool call.

    There is no other hook. To change what a reset is given, override `reset` itself. Attributes
    that a wrapper sets are part of an episode's state: a fork copies them, but for references to
    the environments inside. What it shares with those, such as their generator, is copied apart.

    Raises:
        DefinitionError: When a subclass is defined that has a method named like a hook
            (`before_reset`), which nothing would call.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            if callable(value) and not hasattr(Wrapper, name) and _is_like_a_hook(name):
                raise DefinitionError(
                    f"{cls.__name__}.{name} is not a hook of Wrapper, so nothing would call it."
                    f"{suggest(name, HOOKS)} The hooks are {', '.join(HOOKS)}. If it is a method "
                    f"of your own, call it _{name}."
                )

    def __init__(self, environment: Environment) -> None:
        given: Any = environment
        if not isinstance(given, Environment):
            name = type(self).__name__
            raise DefinitionError(
                f"{name} wraps an Environment, got {given!r}. Make it afterwards: "
                f"ew.make({name}(MyEnvironment()))."
            )
        self.environment = environment = environment.unwrap()
        self.deterministic = environment.deterministic
        self.tasks = environment.tasks
        self._interface = environment.describe()
        several = self._interface.possible_agents is not None
        self._read_reset = read_agents_reset if several else read_reset
        self._read_step = read_agents_step if several else read_step

    @property
    def transform(self) -> Callable[[Observation], Observation] | None:
        """The transform of the environment inside."""
        return self.environment.transform

    @transform.setter
    def transform(self, transform: Callable[[Observation], Observation] | None) -> None:
        self.environment.transform = transform

    def before_step(self, action: Any) -> Any:
        """Return the action to pass to the environment inside."""
        return action

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Return the start to show."""
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Return the outcome to show."""
        return result

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Return the outcome to show after the answer to a tool call."""
        return result

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode inside."""
        outcome = self.environment.reset(**kwargs)
        return self._then("reset", outcome, lambda raw: self.after_reset(self._read_reset(raw)))

    def step(self, action: Any) -> Any:
        """Step inside."""
        outcome = self.environment.step(self.before_step(action))
        return self._then("step", outcome, lambda raw: self.after_step(self._read_step(raw)))

    def answer(self, result: ToolResult) -> Any:
        """Pass the answer to a tool call on."""
        outcome = self.environment.answer(result)
        return self._then("answer", outcome, lambda raw: self.after_answer(self._read_step(raw)))

    def _then(self, method: str, outcome: Any, read: Callable[[Any], Any]) -> Any:
        if method in self._interface.async_methods:
            return _later(outcome, read)
        return read(outcome)

    def snapshot(self) -> Any:
        """Return the state of the environment inside, and a deep copy of this wrapper's own."""
        inside = self.environment.snapshot()
        return self._then("snapshot", inside, self._with_own)

    def restore(self, snapshot: Any) -> Any:
        """Continue from a snapshot of an environment that is wrapped in the same way."""
        state, own = snapshot if isinstance(snapshot, tuple) else (snapshot, None)
        paste_attributes(self, own, _FIXED, self._inside())
        return self.environment.restore(state)

    def _with_own(self, state: Any) -> tuple[Any, AttributesCopy]:
        return state, copy_attributes(self, _FIXED, self._inside())

    def _inside(self) -> Iterator[Environment]:
        """Yield the environments inside, from the outermost to the innermost."""
        one = self.environment
        yield one
        while isinstance(one, Wrapper):
            one = one.environment
            yield one

    @property
    def state(self) -> Any:
        """The state of the environment inside."""
        return self.environment.state

    def close(self) -> Any:
        """Close the environment inside."""
        return self.environment.close()

    def connect(self, events: list[LogEvent | ToolCallRequest | EpisodeEnd]) -> None:
        """Connect this and the environment inside."""
        super().connect(events)
        self.environment.connect(events)

    def hold(self) -> Callable[[], None]:
        """Keep the resources that environments like the one inside share."""
        return self.environment.hold()

    def describe(self) -> Interface:
        """Describe the environment inside, with the specs that this wrapper sets."""
        return dataclasses.replace(
            self._interface,
            action_spec=self._set("action_spec"),
            observation_spec=self._set("observation_spec"),
        )

    def _set(self, name: str) -> Spec:
        """The spec that this wrapper sets, or that of the environment inside."""
        given, agents = getattr(self, name), self._interface.possible_agents
        if given is None:
            inside: Spec = getattr(self._interface, name)
            return inside
        read = read_spec(given, f"{type(self).__name__}.{name}")
        return for_one(read, name) if agents is None else by_agent(read, agents, name)

    @property
    def possible_agents(self) -> tuple[str, ...]:
        """Every agent that may ever take part inside; empty for one unnamed agent."""
        return self._interface.possible_agents or ()

    def to_act(self) -> Any:
        """Return the agents that must act now, as the environment inside does."""
        return self.environment.to_act()  # type: ignore[attr-defined] # only called for multi-agent


@final
class TimeLimit(Wrapper):
    """Truncates an episode after `max_steps` steps."""

    def __init__(self, environment: Environment, max_steps: int) -> None:
        super().__init__(environment)
        if max_steps < 1:
            raise OptionError(f"max_steps={max_steps!r} allows no step; use 1 or more.")
        self.max_steps = max_steps
        self._taken = 0

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Start to count."""
        self._taken = 0
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Set `truncated` on the last step that is allowed."""
        self._taken += 1
        if any(isinstance(event, ToolCallRequest) for event in self._emitted_events or ()):
            return result  # the step is not over before its tool call is answered
        return self.after_answer(result)

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Set `truncated` once the last step's tool calls are answered."""
        if self._taken >= self.max_steps:
            if isinstance(result.truncated, dict):
                result.truncated = {**result.truncated, "__all__": True}
            else:
                result.truncated = True
        return result


@final
class EpisodeStatistics(Wrapper):
    """Adds `info["episode"]` to the last result: `return`, `length` and `duration_s`.

    With several agents `return` is a dict keyed by agent id.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._return: Any = 0.0
        self._length = 0
        self._began_s = 0.0
        self._living: set[str] = set()

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Start to count."""
        several = self._interface.possible_agents is not None
        self._return = {} if several else 0.0
        self._living = set(result.observation) if several else set()
        self._length, self._began_s = 0, time.perf_counter()
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Count the step and its reward."""
        self._length += 1
        return self.after_answer(result)

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Count the reward; at the end, add the sums to the info."""
        if isinstance(result.reward, dict):
            for agent, reward in result.reward.items():
                self._return[agent] = self._return.get(agent, 0.0) + (reward or 0.0)
        else:
            self._return += result.reward or 0.0
        if self._ends(result):
            statistics = {
                "return": self._return,
                "length": self._length,
                "duration_s": time.perf_counter() - self._began_s,
            }
            result.info = {**result.info, "episode": statistics}
        return result

    def _ends(self, result: StepResult[Any]) -> bool:
        if result.end is not None:
            return True
        if any(isinstance(event, EpisodeEnd) for event in self._emitted_events or ()):
            return True
        terminated, truncated = result.terminated, result.truncated
        if not isinstance(terminated, dict) or not isinstance(truncated, dict):
            return bool(terminated or truncated)
        left = {agent for flags in (terminated, truncated) for agent in flags if flags[agent]}
        self._living = (self._living | set(result.observation)) - left
        return "__all__" in left or not self._living


class TextWrapper(Wrapper):
    """Shows the whole episode so far of an environment with text actions and observations.

    They may be `str`, or have one `str` field. The transform of the environment inside sees its
    own observations.

    Attributes:
        observation_field: The field of an observation to show; `None` if it is a `str` itself.
        action_field: The field of an action to fill in; `None` if it is a `str` itself.

    Raises:
        OptionError: There is no such field, or there are several agents.
    """

    def __init__(
        self,
        environment: Environment,
        observation_field: str | None = None,
        action_field: str | None = None,
    ) -> None:
        super().__init__(environment)
        interface = self._interface
        if interface.possible_agents is not None:
            raise OptionError(
                f"{type(self).__name__} is for one agent, and {interface.name} has "
                f"{', '.join(interface.possible_agents)}."
            )
        shown, taken = interface.observation_spec, interface.action_spec
        self.observation_field = _text_field(self, shown, "observation", observation_field)
        self.action_field = _text_field(self, taken, "action", action_field)
        self._shows_dict = isinstance(shown, DictSpec)
        self._last_action: Any = None

    @abstractmethod
    def read_action(self, action: Any) -> str:
        """Return the text of an action."""

    @abstractmethod
    def begin(self, text: str) -> Any:
        """Return the observation of an episode that begins with this text."""

    @abstractmethod
    def go_on(self, action: Any, text: str) -> Any:
        """Return the observation after an action (`None` for a tool's answer) and this text."""

    @property
    def transform(self) -> Callable[[Observation], Observation] | None:
        """Always `None`: a transform set here is applied to the environment inside."""
        return None

    @transform.setter
    def transform(self, transform: Callable[[Observation], Observation] | None) -> None:
        self.environment.transform = transform

    def before_step(self, action: Any) -> Any:
        """Return an action of the environment inside with this text."""
        text, self._last_action = self.read_action(action), action
        value = text if self.action_field is None else {self.action_field: text}
        try:
            return self._interface.action_spec.check(value, "action")
        except SpecError as error:
            raise ActionError(str(error)) from None

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Show the first text."""
        result.observation = self.begin(self._text(result))
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Show the action and the next text too."""
        result.observation = self.go_on(self._last_action, self._text(result))
        return result

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Show the next text too."""
        result.observation = self.go_on(None, self._text(result))
        return result

    def _text(self, result: StepResult[Any]) -> str:
        """Return the text of an observation, once the inner transform has been applied."""
        transform = self.environment.transform
        if transform is not None and isinstance(result.observation, Observation):
            shown = copy.deepcopy(result.observation)
            shown.reward, shown.metadata = result.reward, copy.deepcopy(result.info)
            shown.done, shown.truncated = result.terminated, result.truncated
            result.observation = shown = transform(shown)
            result.reward, result.info = shown.reward, shown.metadata
            result.terminated, result.truncated = shown.done, shown.truncated
        text = result.observation
        if self.observation_field is not None:
            field = self.observation_field
            text = text[field] if self._shows_dict else getattr(text, field)
        if not isinstance(text, str):
            kind = type(text).__name__
            raise BadReturnError(f"{type(self).__name__} needs a str to show, got {kind}.")
        return text


class ChatMessage(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class AssistantMessage(TypedDict):
    """A message of the agent."""

    role: Literal["assistant"]
    content: str


@final
class ChatWrapper(TextWrapper):
    """Chat messages in and out: observations are the conversation so far.

    A step takes the assistant's message, or only its text. The environment's observations are
    the user's messages; an empty one adds no message.
    """

    action_spec = str | AssistantMessage
    observation_spec = list[ChatMessage]

    def __init__(
        self,
        environment: Environment,
        system_prompt: str | None = None,
        *,
        observation_field: str | None = None,
        action_field: str | None = None,
    ) -> None:
        super().__init__(environment, observation_field, action_field)
        self.system_prompt = system_prompt
        self._messages: list[ChatMessage] = []

    def read_action(self, action: Any) -> str:
        """Return the content of the message."""
        text: str = action if isinstance(action, str) else action["content"]
        return text

    def begin(self, text: str) -> list[ChatMessage]:
        """Return the system prompt, if there is one, and the first message."""
        self._messages = []
        if self.system_prompt is not None:
            self._messages.append({"role": "system", "content": self.system_prompt})
        return self.go_on(None, text)

    def go_on(self, action: Any, text: str) -> list[ChatMessage]:
        """Return all messages."""
        if action is not None:
            self._messages.append({"role": "assistant", "content": self.read_action(action)})
        if text:
            self._messages.append({"role": "user", "content": text})
        return list(self._messages)


@final
class TokenizerWrapper(TextWrapper):
    """Token ids in and out: observations are all ids of the episode so far.

    `tokenizer` is any object with `encode(text)` and `decode(ids)`, such as those of `transformers`
    and `tokenizers`. The ids of an action are kept and never encoded again, so an observation
    begins with the one before and the ids of the action. A tokenizer that takes
    `add_special_tokens` adds them only at the start of an episode, and one that takes
    `skip_special_tokens` omits them from the text for the environment inside.
    """

    action_spec = list[int]
    observation_spec = list[int]

    def __init__(
        self,
        environment: Environment,
        tokenizer: Any,
        *,
        observation_field: str | None = None,
        action_field: str | None = None,
    ) -> None:
        super().__init__(environment, observation_field, action_field)
        self.tokenizer = tokenizer
        self._encode_more = _with_option(tokenizer.encode, add_special_tokens=False)
        self._decode = _with_option(tokenizer.decode, skip_special_tokens=True)
        self._ids: list[int] = []

    def read_action(self, action: Any) -> str:
        """Return the text of the ids."""
        try:
            return str(self._decode(list(action)))
        except Exception as error:
            raise ActionError(
                f"action: {action!r} cannot be decoded: {format_error(error)}"
            ) from error

    def begin(self, text: str) -> list[int]:
        """Return the ids of the first text."""
        self._ids = _ids(self.tokenizer.encode(text))
        return list(self._ids)

    def go_on(self, action: Any, text: str) -> list[int]:
        """Return all ids."""
        self._ids += [*([] if action is None else action), *_ids(self._encode_more(text))]
        return list(self._ids)


def _ids(encoded: Any) -> list[int]:
    return [int(one) for one in getattr(encoded, "ids", encoded)]


def _with_option(function: Callable[..., Any], **option: Any) -> Callable[..., Any]:
    """Bind an option to the function, if it has a parameter of that name."""
    is_taken = option.keys() <= inspect.signature(function).parameters.keys()
    return partial(function, **option) if is_taken else function


def _text_field(wrapper: Wrapper, spec: Spec, what: str, given: str | None) -> str | None:
    """Return the text field of an action or observation; `None` if it is a `str` itself.

    Raises:
        OptionError: There is none, or there are several and none is named.
    """
    has_fields = (
        isinstance(spec, DataclassSpec | PydanticSpec | StructSpec | DictSpec)
        and spec.fields is not None
    )
    if not has_fields and given is None and (isinstance(spec, AnySpec) or is_text(spec)):
        return None
    fields: dict[str, Spec] = dict(spec.fields) if has_fields else {}  # type: ignore[attr-defined]
    texts = [name for name, one in fields.items() if is_text(one)]
    if given in fields:
        return given
    name = f"{wrapper.environment.describe().name}'s {what}"
    if given is not None:
        raise OptionError(f"{what}_field={given!r} is not in {name}.{suggest(given, fields)}")
    if len(texts) != 1:
        held = f"has the text fields {', '.join(texts)}" if texts else "has no text"
        raise OptionError(
            f"{type(wrapper).__name__} needs one text, and {name} {held}. Name the field to use "
            f"with {what}_field=…."
        )
    return texts[0]


async def _later(outcome: Awaitable[Any], read: Callable[[Any], Any]) -> Any:
    return read(await outcome)
