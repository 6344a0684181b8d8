"""`chat`: any environment as a conversation with a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from envweave.api.env import AsyncEnv, Env
from envweave.api.make import make
from envweave.conversation import AsyncChatEnv, ChatEnv, ChatOptions
from envweave.conversation.chat_env import refuse_late


@overload
def chat(env: AsyncEnv, **options: Any) -> AsyncChatEnv: ...


@overload
def chat(env: Any, **options: Any) -> ChatEnv: ...


def chat(
    env: Any,
    *,
    system: str | None = None,
    render: Callable[[Any], Any] | str | None = None,
    max_invalid: int | None = 5,
    invalid_reward: float = 0.0,
    use_tools: bool = False,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    **kwargs: Any,
) -> ChatEnv | AsyncChatEnv:
    """Present an environment as a conversation: observations are messages, replies are actions.

    A reply is the action itself where actions are texts (or dataclasses with one string field); its
    Python blocks where that field is called `code`; otherwise JSON, alone, in a block, or
    anywhere in the text. A tool call is an action in each case. A reply that is not an action, and
    an action that the environment refuses, cost a step and are answered by an error message.

    Args:
        env: An `Env` or `AsyncEnv`, or what `make` takes. For episodes in a pool, pass a
            `ReplyAgent` or `ChatAgent` to `rollout`.
        system: The first message. The form of replies is added to it, if they must have one.
        render: How to show an observation: a function that returns text, an image, parts of a
            message, or messages; or a format string of its fields. By default the method `render`
            of its class; without one its text, or its fields as JSON. Images (uint8 arrays of 3 or
            4 channels, and image files as bytes) are sent as images.
        max_invalid: Truncate an episode after this many invalid replies; `None` for
            any number.
        invalid_reward: What such a reply earns.
        use_tools: Whether the model is offered the actions as tools, rather than a description
            of the form of its replies. Both are understood in either case.
        functions: Functions that answer the tool calls of the environment, by name. Without one
            the model is asked.
        **kwargs: Passed to `make`.

    Returns:
        An `AsyncChatEnv` for an `AsyncEnv`, else a `ChatEnv`. `messages()` and `tools()` are what
        a model is sent.

    Raises:
        OptionError: An option is invalid, or a keyword comes too late for an existing `Env`.
    """
    options = ChatOptions(
        system=system,
        render=render,
        max_invalid=max_invalid,
        invalid_reward=invalid_reward,
        use_tools=use_tools,
        functions=dict(functions or {}),
    )
    if isinstance(env, AsyncEnv):
        refuse_late(env, kwargs)
        return AsyncChatEnv(env, options, env)
    if isinstance(env, Env):
        refuse_late(env, kwargs)
        return ChatEnv(env, options, env)
    made = make(env, **kwargs)
    return ChatEnv(made, options, made, is_owner=True)
