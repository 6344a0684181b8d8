"""TRL's `environment_factory`: a class per environment whose methods are the model's tools.

TRL calls the tools of a batch one after the other; `TRLRollouts` steps all environments at once.
"""

from __future__ import annotations

import atexit
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

from envweave.api.chat import chat
from envweave.conversation import ChatTool, ChatToolCall
from envweave.conversation.messages import ChatAction
from envweave.conversation.replies import ReplyReader
from envweave.errors import DefinitionError, SeedError
from envweave.types import StepResult

_TYPES = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def trl_environment(env: Any, **options: Any) -> type:
    """Return a class for `environment_factory`: a tool for each kind of action, and nothing else.

    After the end of an episode every tool raises. `get_reward` is the sum of the rewards, and
    `None` if the episode failed through no fault of the model, so that TRL leaves it out. `reset`
    takes `task_id` and `seed` of a row, and ignores its other columns. Instances are closed at
    exit.

    Args:
        env: What `make` takes.
        **options: Those of `chat` (`render`, `max_invalid`, …) and of `make`.

    Raises:
        DefinitionError: The environment has several agents.
    """
    with chat(env, use_tools=True, **options) as probe:
        if probe.possible_agents is not None:
            raise DefinitionError(f"{probe.id!r} has several agents. TRL plays with one.")
        tools = ReplyReader(probe.env.action_spec).tools
        name = probe.id
    reply = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = tools or [ChatTool(name="reply", description="Reply with a text.", parameters=reply)]
    methods: dict[str, Any] = {tool.name: _tool_method(tool) for tool in tools}

    def start(self: Any) -> None:
        self._chat = chat(env, use_tools=True, **options)
        self._reward = None
        self._is_over = True
        _open.add(self)

    methods |= {"__init__": start, "reset": _reset, "get_reward": _get_reward, "_act": _act}
    return type("".join(part for part in name.title() if part.isalnum()) or "Env", (), methods)


def _reset(self: Any, **row: Any) -> str:
    about = {key: row[key] for key in ("task_id", "seed") if row.get(key) is not None}
    if "task_id" in about:
        about["task"] = about.pop("task_id")
    try:
        result = self._chat.reset(**about)
    except SeedError:
        result = self._chat.reset()
    self._reward, self._is_over = 0.0, result.done
    return _text(result)


def _get_reward(self: Any) -> float | None:
    reward: float | None = self._reward
    return reward


def _act(self: Any, reply: str | ChatAction) -> str:
    if self._is_over:
        raise ValueError("The episode is over.")
    try:
        result = self._chat.step(reply)
    except BaseException:
        self._reward, self._is_over = None, True
        raise
    self._is_over = result.done
    if not result.valid:
        self._reward = None
        raise ValueError(f"The episode was lost: {result.end.cause}")
    self._reward += result.reward or 0.0
    return _text(result)


def _text(result: StepResult[Any]) -> str:
    contents = [message.content for message in result.observation.messages]
    return "\n".join(one if isinstance(one, str) else str(one) for one in contents)


def _tool_method(tool: ChatTool) -> Callable[..., str]:
    def method(self: Any, **arguments: Any) -> str:
        if tool.name == "reply" and arguments.keys() == {"text"}:
            return str(self._act(arguments["text"]))
        call = ChatToolCall(name=tool.name, arguments=arguments)
        return str(self._act(ChatAction(tool_calls=[call])))

    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", list(properties))
    hints = {name: _hint(one) for name, one in properties.items()}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[name],
            default=inspect.Parameter.empty if name in required else None,
        )
        for name in properties
    ]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = tool.name
    method.__signature__ = inspect.Signature([own, *parameters], return_annotation=str)  # type: ignore[attr-defined] # functions have it
    method.__annotations__ = {**hints, "return": str}
    described = [f"    {n}: {one.get('description') or n}" for n, one in properties.items()]
    summary = tool.description or f"Act by {tool.name}."
    arguments = "\n".join(["", "", "Args:", *described]) if described else ""
    method.__doc__ = f"{summary}{arguments}\n\nReturns:\n    What is seen next."
    return method


def _hint(schema: Mapping[str, Any]) -> Any:
    values = schema.get("enum")
    if values:
        return Literal[tuple(values)]
    return _TYPES.get(str(schema.get("type")), str)


@atexit.register
def _close_all() -> None:
    for instance in list(_open):
        instance._chat.close()  # noqa: SLF001 - of the class made above
