"""An episode as chat messages, and as data for `json.dumps`."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import math
import sys
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from envweave.types.data import Observation
from envweave.types.requests import ToolCallRequest, ToolResult
from envweave.types.tasks import Private

if TYPE_CHECKING:
    from envweave.types.episodes import Episode

_HIDDEN = ("reward", "done", "truncated", "metadata")
_SHOWN_ELEMENTS = 1000  # of an array in a message


def plain_of(value: Any) -> Any:
    """Return a value as data for `json.dumps`. What it does not know becomes its `repr`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain_of(value.value)
    if isinstance(value, str):
        return str.__str__(value).encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic):
        return plain_of(value.tolist()) if value.dtype.kind in "biufcSU" else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, complex):
        return [plain_of(value.real), plain_of(value.imag)]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Private):
        return "withheld" if value else None
    if isinstance(value, Mapping):
        return {_key(key): plain_of(one) for key, one in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain_of(one) for one in value]
    return _record(value)


def _record(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, getattr(value, field.name, None)) for field in _fields(value))
        return {
            name: plain_of(one)
            for name, one in fields
            if not (isinstance(one, Private) and not one)
        }
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag is None else {str(config.tag_field): config.tag}
        return tag | {name: plain_of(getattr(value, name)) for name in value.__struct_fields__}
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return plain_of(value.model_dump(warnings=False))
    return repr(value)


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)


def _key(key: Any) -> str:
    plain = plain_of(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def messages_of(episode: Episode) -> list[dict[str, Any]]:
    """Return an episode as chat messages. See `Episode.messages`."""
    last = episode.final_observation
    if _is_conversation(last):
        return [dict(plain_of(one)) for one in last]
    messages: list[dict[str, Any]] = []
    _add(messages, "user", first_text(episode.observations[0]))
    seen = [step.observation for step in episode.steps[1:]] + [last]
    for step, observation in zip(episode.steps, seen, strict=True):
        if step.is_answer:
            answer: ToolResult = step.action
            shown = answer.value if answer.error is None else answer.error
            content = shown if isinstance(shown, str) else _json(shown)
            messages.append({"role": "tool", "tool_call_id": answer.call_id, "content": content})
        else:
            _add(messages, "assistant", action_text(step.action))
        calls = [_call(event) for event in step.events if isinstance(event, ToolCallRequest)]
        if calls:
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        else:
            _add(messages, "user", observation_text(observation))
    return messages


def _add(messages: list[dict[str, Any]], role: str, content: str) -> None:
    if content or role == "assistant":
        messages.append({"role": role, "content": content})


def _call(event: ToolCallRequest) -> dict[str, Any]:
    function = {"name": event.name, "arguments": _json(event.arguments)}
    return {"id": event.call_id, "type": "function", "function": function}


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in value)
    )


def _shown_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record that its agent sees; `None` for anything else."""
    hidden = _HIDDEN if isinstance(value, Observation) else ("metadata",)
    if isinstance(value, Mapping):
        fields = dict(value)
        if fields.keys() >= set(_HIDDEN):
            hidden = _HIDDEN
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name, None) for one in _fields(value)}
        if fields.keys() >= set(_HIDDEN):
            hidden = _HIDDEN
    else:
        return None
    return {name: one for name, one in fields.items() if name not in hidden}


def action_text(action: Any) -> str:
    """Return an action as the text of a message."""
    if isinstance(action, str):
        return action
    fields = _shown_fields(action)
    if fields is not None and isinstance(fields.get("code"), str):
        return str(fields["code"])
    if fields is not None and len(fields) == 1:
        (only,) = fields.values()
        if isinstance(only, str):
            return only
    if fields is not None and fields.keys() == {"role", "content"}:
        return str(fields["content"])
    return _json(action if fields is None else fields)


def _shows_code(observation: Any) -> bool:
    fields = _shown_fields(observation) or {}
    return "execution_result" in fields or {"stdout", "stderr"} <= fields.keys()


def _prompt(observation: Any) -> str:
    prompt = (_shown_fields(observation) or {}).get("prompt")
    return prompt if isinstance(prompt, str) else ""


def first_text(observation: Any) -> str:
    """Return the first observation as the text of a message: a prompt, if code is to follow."""
    return _prompt(observation) if _shows_code(observation) else observation_text(observation)


def observation_text(observation: Any) -> str:
    """Return an observation as the text of a message."""
    if isinstance(observation, str):
        return observation
    if observation is None:
        return ""
    fields = _shown_fields(observation)
    if fields is None:
        return _json(observation)
    if _shows_code(observation):
        return _output(fields)
    if len(fields) == 1:
        (only,) = fields.values()
        if isinstance(only, str):
            return only
    return _json(fields)


def _output(fields: Mapping[str, Any]) -> str:
    """Return what code printed, its value and its error, as a terminal would show them."""
    result = fields.get("execution_result")
    parts = plain_of(fields if result is None else result)
    error = parts.get("traceback") or ""
    if not error and parts.get("exception_type"):
        error = f"{parts['exception_type']}: {parts.get('exception_message') or ''}"
    shown = [parts.get("stdout"), parts.get("return_repr"), parts.get("stderr"), error]
    return "\n".join(text.rstrip("\n") for text in shown if isinstance(text, str) and text)


def _json(value: Any) -> str:
    return json.dumps(plain_of(_without_large(value)), ensure_ascii=False)


def _without_large(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size > _SHOWN_ELEMENTS:
        return f"<array of {value.dtype} and shape {value.shape}>"
    if isinstance(value, Mapping):
        return {key: _without_large(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_large(one) for one in value]
    return value
