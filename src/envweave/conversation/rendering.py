"""An observation as messages: by its author's `render`, as text, and with its images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from envweave.codec import to_plain
from envweave.conversation.messages import ChatObservation, TurnMessage
from envweave.errors import BadReturnError, EnvWeaveError, OptionError, format_error
from envweave.types import Observation
from envweave.wire.encoding import PLAIN_JSON

Render: TypeAlias = Callable[[Any], Any] | str
"""A function of the observation, or a format string with its fields, such as `"{question}"`."""

_OUTCOME = ("reward", "done", "truncated", "metadata")  # fields of every observation
_KINDS = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
_LEAST_PIXELS = 16


def observation_text(observation: Any) -> str:
    """Return an observation as text: a string unchanged, anything else as JSON.

    An `Observation` is shown by its author's own fields; if there is only one, and it is a
    string, by that.
    """
    plain = to_plain(observation)
    if isinstance(observation, Observation) and isinstance(plain, dict):
        plain = {name: one for name, one in plain.items() if name not in _OUTCOME}
        if len(plain) == 1 and isinstance(one := next(iter(plain.values())), str):
            return one
    return plain if isinstance(plain, str) else bytes(PLAIN_JSON.encode(plain)).decode()


def render_messages(observation: Any, render: Render | None) -> tuple[list[TurnMessage], bool]:
    """Return the messages of an observation, and whether they are the whole conversation.

    Raises:
        BadReturnError: The author's `render` failed, or returned something else.
        OptionError: A format string has a field that the observation lacks.
    """
    if render is None and is_chat_observation(observation):
        messages = [TurnMessage.from_openai(to_plain(one)) for one in observation.messages]
        return messages, bool(observation.is_new)
    shown = observation
    if isinstance(render, str):
        shown = _format(render, observation)
    elif render is not None or callable(getattr(type(observation), "render", None)):
        try:
            shown = observation.render() if render is None else render(observation)
        except EnvWeaveError:
            raise
        except Exception as error:
            raise BadReturnError(
                f"render() of {type(observation).__name__} raised {format_error(error)}."
            ) from error
        if shown is None:
            return [], False
    if _is_list_of(shown, "role"):
        # A conversation, such as that of a ChatWrapper, is shown whole each time.
        return [TurnMessage.from_openai(one) for one in shown], shown is observation
    content = shown if _is_list_of(shown, "type") else _content(shown)
    return ([TurnMessage(role="user", content=content)] if content else []), False


def is_chat_observation(observation: Any) -> bool:
    """Whether it is a `ChatObservation`, or what another process makes of one."""
    return isinstance(observation, ChatObservation) or (
        type(observation).__name__ == "ChatObservation" and hasattr(observation, "is_new")
    )


def _format(template: str, observation: Any) -> str:
    fields = observation if isinstance(observation, Mapping) else _fields(observation)
    try:
        return template.format(**(fields or {"observation": observation}))
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        known = ", ".join(fields or ["observation"])
        raise OptionError(
            f"render={template!r} does not fit the observation ({format_error(error)}). Its fields "
            f"are: {known}."
        ) from error


def _is_list_of(value: Any, key: str) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(one, Mapping) and key in one for one in value)


def _fields(observation: Any) -> dict[str, Any] | None:
    if isinstance(observation, Observation):
        names = [name for name in vars(observation) if name not in _OUTCOME]
        return {name: getattr(observation, name) for name in names if not name.startswith("_")}
    return dict(observation) if isinstance(observation, Mapping) else None


def _content(observation: Any) -> str | list[dict[str, Any]]:
    """Return the text of an observation, or its text and its images as parts."""
    if is_image(observation):
        return [image_part(observation)]
    fields = _fields(observation) or {}
    images = [name for name, one in fields.items() if is_image(one)]
    if not images:
        return observation_text(observation)
    rest = {name: one for name, one in fields.items() if name not in images}
    only = next(iter(rest.values()), "")
    text = observation_text(only if len(rest) < 2 and isinstance(only, str) else rest)
    parts = [image_part(fields[name]) for name in images]
    return [{"type": "text", "text": text}, *parts] if text else parts


def is_image(value: Any) -> bool:
    """Whether it is a picture.

    That is a uint8 array of height, width and 3 or 4 channels, with 16 pixels a side or more, or
    the bytes of a PNG, JPEG, GIF or WebP file.
    """
    if isinstance(value, np.ndarray):
        return (
            value.dtype == np.uint8
            and value.ndim == 3
            and value.shape[2] in (3, 4)
            and min(value.shape[:2]) >= _LEAST_PIXELS
        )
    return isinstance(value, bytes) and _kind(value) is not None


def _kind(data: bytes) -> str | None:
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)
    return None if kind == "image/webp" and data[8:12] != b"WEBP" else kind


def image_part(image: Any) -> dict[str, Any]:
    """Return a picture as a part of a message's content, with a data URL."""
    data = image if isinstance(image, bytes) else _png(image)
    url = f"data:{_kind(data)};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _png(array: np.ndarray[Any, Any]) -> bytes:
    height, width, channels = array.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter, 0
    rows[:, 1:] = array.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
