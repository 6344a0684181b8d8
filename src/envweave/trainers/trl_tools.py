"""TRL's `environment_factory`: a class per environment whose methods are the model's tools.

TRL calls the tools of a batch one after the other; `TRLRollouts` steps all environments at once.
"""

from __future__ import annotations

import atexit
import base64
import inspect
import io
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from envweave.conversation import ChatTool, ChatToolCall
from envweave.conversation.messages import ChatAction
from envweave.conversation.replies import ReplyReader
from envweave.errors import DefinitionError, EnvironmentFailure, MissingExtraError, SeedError
from envweave.trainers.episodes import EpisodeScore, chat_of_one
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

Shown: TypeAlias = "str | list[dict[str, Any]]"
"""What TRL shows the model: a text, or blocks of text and images."""


def trl_environment(env: Any, **options: Any) -> type:
    """Return a class for `environment_factory`: a tool for each kind of action, and nothing else.

    After the end of an episode every tool raises. `get_reward` is the sum of the rewards, and
    `None` if the episode failed through no fault of the model or was never scored, so that TRL
    leaves it out. `reset` takes `task_id` and `seed` of a row, and ignores its other columns.
    Images are shown as TRL's image blocks. Instances are closed at exit.

    Args:
        env: What `make` takes.
        **options: Those of `chat` (`render`, `max_invalid`, …) and of `make`.

    Raises:
        DefinitionError: The environment has several agents, or an action that would be a tool
            called `reset` or `get_reward`.
    """
    with chat_of_one(env, use_tools=True, **options) as probe:
        tools = ReplyReader(probe.env.action_spec).tools
        name = probe.id
    reply = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = tools or [ChatTool(name="reply", description="Reply with a text.", parameters=reply)]
    methods: dict[str, Any] = {tool.name: _tool_method(tool) for tool in tools}

    def start(self: Any) -> None:
        self._chat = chat_of_one(env, use_tools=True, **options)
        self._score = EpisodeScore()
        self._reward = None
        self._is_over = True
        _open.add(self)

    own = {"__init__": start, "reset": _reset, "get_reward": _get_reward, "_act": _act}
    if taken := own.keys() & methods:
        raise DefinitionError(
            f"{name!r} has an action that would be the tool {min(taken)!r}, which TRL calls "
            "itself. Rename its class, or train with TRLRollouts."
        )
    methods |= own
    return type("".join(part for part in name.title() if part.isalnum()) or "Env", (), methods)


def _reset(self: Any, **row: Any) -> Shown:
    about = {key: row[key] for key in ("task_id", "seed") if row.get(key) is not None}
    if "task_id" in about:
        about["task"] = about.pop("task_id")
    try:
        result = self._chat.reset(**about)
    except SeedError:
        result = self._chat.reset()
    self._score, self._reward, self._is_over = EpisodeScore(), 0.0, result.done
    return _shown(result)


def _get_reward(self: Any) -> float | None:
    reward: float | None = self._reward
    return reward


def _act(self: Any, reply: str | ChatAction) -> Shown:
    if self._is_over:
        raise ValueError("The episode is over.")
    try:
        result = self._chat.step(reply)
    except BaseException:
        self._reward, self._is_over = None, True
        raise
    self._is_over = result.done
    try:
        self._score.add(result)
    except EnvironmentFailure as failure:
        self._reward = None
        raise ValueError(f"The episode was lost. {failure}") from failure
    self._reward = self._score.total or 0.0
    return _shown(result)


def _shown(result: StepResult[Any]) -> Shown:
    contents = [message.content for message in result.observation.messages]
    if all(isinstance(one, str) for one in contents):
        return "\n".join(contents)
    return [
        _block(part)
        for one in contents
        if one  # beside an image, a tool's own message may be empty
        for part in ([{"type": "text", "text": one}] if isinstance(one, str) else one)
    ]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message as TRL's block; a picture as an image of Pillow."""
    if "image_url" not in part:
        return part
    url = part["image_url"]["url"]
    if not url.startswith("data:"):
        return {"type": "image", "image": url}
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError(
            "Showing images to a model of TRL needs Pillow. Install it with: pip install pillow"
        ) from None
    data = base64.b64decode(url.partition(",")[2])
    return {"type": "image", "image": Image.open(io.BytesIO(data))}


def _tool_method(tool: ChatTool) -> Callable[..., Shown]:
    def method(self: Any, **arguments: Any) -> Shown:
        if tool.name == "reply" and arguments.keys() == {"text"}:
            shown: Shown = self._act(arguments["text"])
        else:
            call = ChatToolCall(name=tool.name, arguments=arguments)
            shown = self._act(ChatAction(tool_calls=[call]))
        return shown

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
