"""What goes to an MCP server and comes from it, as the code that calls has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envweave.errors import EnvWeaveError

_KEPT = ("uri", "name", "title", "description", "mimeType", "data", "text")


class McpError(EnvWeaveError, RuntimeError):
    """A call of an MCP server's tool failed: in the server's words, or what became of it."""


@dataclass(frozen=True)
class Answer:
    """What a server sent back for a call.

    Attributes:
        content: The blocks of content, as in the protocol.
        structured: The same as data, where the server gives it so.
        is_error: Whether the content says what went wrong.
    """

    content: Sequence[Mapping[str, Any]]
    structured: Any = None
    is_error: bool = False


def check_sendable(tool: str, arguments: Mapping[str, Any]) -> None:
    """Refuse what JSON has no words for. Code behind walls can pass more than that.

    Raises:
        TypeError: The message names the argument.
    """
    for name, value in arguments.items():
        odd = _unsayable(value)
        if odd:
            raise TypeError(f"{tool}() argument {name!r}: JSON, which MCP speaks, has no {odd}.")


def _unsayable(value: Any) -> str:
    """Return what JSON cannot say of a value; nothing if it can say all of it."""
    if value is None or isinstance(value, str | int):  # a bool is an int
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return next(filter(None, map(_unsayable, value)), "")
    if isinstance(value, dict):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return f"key {odd!r}"
        return next(filter(None, map(_unsayable, value.values())), "")
    return type(value).__name__


def value_of(answer: Answer, output: Mapping[str, Any] | None) -> Any:
    """Return an answer as plain data.

    Data is given as it is, text as text, several texts joined by line breaks. Anything else is a
    dict with its `type`: what a picture holds is under `data`, in Base64. Where text and others
    come together it is a list, in order.

    Args:
        answer: What the server sent.
        output: The JSON Schema of the tool's results, where it has one.

    Raises:
        McpError: It tells of an error.
    """
    if answer.is_error:
        raise McpError(_text(answer) or "The server says that the call failed, and not why.")
    if answer.structured is not None:
        return _unwrapped(answer.structured, output)
    blocks = [_plain(block) for block in answer.content]
    if all(isinstance(block, str) for block in blocks):
        return "\n".join(blocks) if blocks else None
    return blocks[0] if len(blocks) == 1 else blocks


def _unwrapped(structured: Any, output: Mapping[str, Any] | None) -> Any:
    """Take a result out of the object that servers put it in, since the protocol wants one."""
    if not isinstance(structured, Mapping) or list(structured) != ["result"]:
        return structured
    declared = output.get("properties") if output is not None else None
    if isinstance(declared, Mapping) and list(declared) == ["result"]:
        return structured["result"]
    return structured


def _plain(block: Mapping[str, Any]) -> Any:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    told = {"type": block.get("type", "")}
    held = block.get("resource")
    for source in (block, held if isinstance(held, Mapping) else {}):
        told |= {key: source[key] for key in _KEPT if key in source}
        if "blob" in source:
            told["data"] = source["blob"]
    return told


def _text(answer: Answer) -> str:
    texts = [_plain(block) for block in answer.content]
    return "\n".join(text for text in texts if isinstance(text, str)).strip()
