"""A model's reply as an action: from plain text, JSON, a block of code, or a call of a tool."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, final

from envweave.codec import AnySpec, Spec, to_plain
from envweave.codec.containers import DictSpec, UnionSpec, members_of
from envweave.codec.pydantic_models import PydanticSpec
from envweave.codec.records import DataclassSpec, StructSpec, docstring
from envweave.codec.scalars import EnumSpec, is_text
from envweave.codec.spec import short_repr
from envweave.conversation.messages import ChatAction, ChatTool, ChatToolCall
from envweave.errors import ActionError, SpecError, suggest
from envweave.tools.functions import read_docstring

_Record = DataclassSpec | PydanticSpec | StructSpec

NO_CODE = (
    "There is no block of code in your answer, so nothing was run. Write one between ```python "
    "and ```."
)

_BLOCK = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)```[ \t\r]*$", re.DOTALL | re.MULTILINE)
_PYTHON = ("", "py", "python", "python3")
_DATA = ("", "json", "json5", "jsonc", "tool_call")
_AROUND_WORDS = " \t\r\n`'\"*."
_ATTEMPTS = 64  # at finding JSON within a text; bounds the time that a hostile text takes


def code_in(text: str) -> str | None:
    """Return all code blocks in a model's answer; `None` if there is none.

    Blocks of another language, such as shell, are skipped.
    """
    blocks = [
        textwrap.dedent(block).strip("\n")
        for language, block in _BLOCK.findall(text)
        if language.strip().lower() in _PYTHON
    ]
    return "\n".join(blocks) if blocks else None


def read_message(reply: str | ChatAction | Mapping[str, Any]) -> ChatAction:
    """Return a reply as a `ChatAction`: a text, or a message of OpenAI's chat API.

    What a model or its server got wrong in a message is kept, for `ReplyReader.read` to refuse.

    Raises:
        ActionError: It is none of these: a mistake in the caller's code.
    """
    if isinstance(reply, str):
        return ChatAction(content=_clean(reply))
    if isinstance(reply, Mapping):
        return ChatAction(
            content=_clean(_text_of(reply.get("content"))),
            tool_calls=_calls_of(reply.get("tool_calls")),
        )
    if isinstance(reply, ChatAction):
        return reply
    raise ActionError(
        f"A reply must be a str, a message (a dict) or a ChatAction, got {type(reply).__name__}."
    )


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        parts = [one.get("text") for one in content if isinstance(one, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _calls_of(calls: Any) -> list[ChatToolCall]:
    read = []
    for call in calls if isinstance(calls, list) else ():
        call = call if isinstance(call, Mapping) else {}
        inner = call.get("function", call)
        inner = inner if isinstance(inner, Mapping) else {}
        name, arguments, id_ = inner.get("name"), inner.get("arguments"), call.get("id")
        read.append(
            ChatToolCall(
                name=_clean(name) if isinstance(name, str) else "",
                arguments=_clean(arguments)
                if isinstance(arguments, str)
                else dict(arguments)
                if isinstance(arguments, Mapping)
                else "{}"
                if arguments is None
                else json.dumps(to_plain(arguments)),
                id=id_ if isinstance(id_, str) and id_ else None,
            )
        )
    return read


def _clean(text: str) -> str:
    """Return a text that can be sent: half of a surrogate pair becomes "?"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


@final
class ReplyReader:
    """Reads a model's replies as actions of one spec.

    A text is the action itself if actions are strings, or a dataclass with one string field. If
    that field is called `code`, the action is the Python blocks of the text. Otherwise the action
    is JSON: the whole text, the last block, or the last object in it. A call of one of `tools`
    is an action too. What a model thinks before `</think>` is skipped.

    Attributes:
        tools: The actions as tools: one for each member of a union, else one.
        instructions: Tells the model the form of its replies; empty if every text is an action.
        is_chat: Whether actions are replies themselves (`ChatAction`).
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        options = spec.options if isinstance(spec, UnionSpec) else [spec]
        self.is_chat = any(
            isinstance(one, DataclassSpec) and one.fields.keys() >= {"content", "tool_calls"}
            for one in options
        )
        self._only_field = _only_field(spec)
        text = spec.fields[self._only_field] if self._only_field is not None else spec  # type: ignore[attr-defined] # only a record has fields
        self._words = [str(one) for one in text.values] if is_word(text) else []
        self._field = None if self._words else text_field(spec)
        self._takes_text = not self._words and _takes_text(spec)
        self._has_metadata = any(
            isinstance(one, DataclassSpec) and "metadata" in one.optional for one in options
        )
        self._tools = {} if self.is_chat else _tools_of(spec)
        self.tools = [tool for tool, _ in self._tools.values()]
        self.instructions = self._instructions()

    def _instructions(self) -> str:
        if self._field == "code":
            return "Answer with one block of Python code between ```python and ```. It is run."
        if self.is_chat or self._takes_text or self._field is not None:
            return ""
        if self._words:
            return f"Reply with one of these and nothing else: {', '.join(self._words)}"
        schema = without_metadata(self._spec.json_schema())
        for option in schema.get("anyOf", ()):
            without_metadata(option)
        return (
            "Reply with nothing but your next action, as JSON that fits this schema: "
            f"{json.dumps(schema)}"
        )

    def read(self, reply: ChatAction) -> Any:
        """Return the action of a reply.

        Raises:
            ActionError: It is not an action; the message says why, for the model.
        """
        if self.is_chat:
            plain = to_plain(reply)
            plain.pop("metadata", None)  # it is the caller's
            return self._check(plain)
        if reply.tool_calls:
            if len(reply.tool_calls) > 1:
                raise ActionError(
                    f"There are {len(reply.tool_calls)} tool calls in the reply. Make one at a "
                    "time."
                )
            return self._read_call(reply.tool_calls[0])
        text = _after_thinking(reply.content)
        if self._field == "code":
            code = code_in(text)
            if code is None:
                raise ActionError(NO_CODE)
            return self._check({"code": code})
        if self._field is not None:
            return self._check({self._field: text})
        if self._takes_text:
            return self._check(text)
        return self._read_text(text)

    def _check(self, value: Any, name: str = "action", spec: Spec | None = None) -> Any:
        if self._has_metadata and isinstance(value, dict) and "metadata" in value:
            raise ActionError(f"{name}.metadata: unknown field.")  # it is the caller's
        try:
            return (spec or self._spec).check(value, name)
        except SpecError as error:
            raise ActionError(str(error)) from error
        except RecursionError as error:
            raise ActionError(f"{name}: it is nested too deeply.") from error

    def _read_call(self, call: ChatToolCall) -> Any:
        if call.name not in self._tools:
            raise ActionError(
                f"There is no tool {call.name!r}.{suggest(call.name, self._tools)} "
                f"There are: {', '.join(self._tools)}."
            )
        arguments: Any = call.arguments
        if isinstance(arguments, str):
            try:
                arguments = _load(arguments or "{}")
            except ValueError as error:
                raise ActionError(
                    f"The arguments of {call.name} are not valid JSON ({error})."
                ) from error
        if not isinstance(arguments, dict):
            raise ActionError(
                f"The arguments of {call.name} must be an object, not {type(arguments).__name__}."
            )
        _, spec = self._tools[call.name]
        if not isinstance(spec, _Record):
            if arguments.keys() != {"action"}:
                raise ActionError(f"{call.name} takes one argument, 'action'.")
            arguments = arguments["action"]
        return self._check(arguments, call.name, spec)

    def _read_text(self, text: str) -> Any:
        """Return the first JSON value in a text that is an action, or the text as a word."""
        word = text.strip()
        word = word if word in self._words else text.strip(_AROUND_WORDS)
        if word in self._words:
            return self._read_value(word)
        why, failure = "", None
        try:
            candidates: Iterator[Any] = iter([_load(text.strip())])
        except ValueError as error:
            candidates, why = _find_json(text), str(error)
        for value in candidates:
            try:
                return self._read_value(value)
            except ActionError as error:
                failure = failure or error
        if failure is None and self._words:
            words = ", ".join(map(repr, self._words))
            failure = ActionError(f"{short_repr(word)} is not one of {words}.")
        raise failure or ActionError(f"The reply is not valid JSON ({why}).")

    def _read_value(self, value: Any) -> Any:
        if isinstance(value, dict) and value.get("name") in self._tools:
            arguments = value.get("arguments", value.get("parameters"))
            if isinstance(arguments, dict | str):
                return self._read_call(ChatToolCall(name=value["name"], arguments=arguments))
        if self._only_field is not None and not isinstance(value, dict):
            return self._check({self._only_field: value})
        return self._check(value)


def _after_thinking(text: str) -> str:
    """Return what follows a model's thoughts.

    Raises:
        ActionError: It only thought.
    """
    if "</think>" in text:
        return text.rpartition("</think>")[2].strip()
    if text.lstrip().startswith("<think>"):
        raise ActionError("The reply ends before </think>, so it holds no action.")
    return text


def _load(text: str) -> Any:
    """Parse JSON; whatever is wrong with it is a `ValueError`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return _checked(text, value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _checked(text: str, value: Any) -> Any:
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair") from None
    return value


def _find_json(text: str) -> Iterator[Any]:
    """Yield the JSON values within a text: its blocks, then its objects, each the last first."""
    for language, block in reversed(_BLOCK.findall(text)):
        if language.strip().lower() in _DATA:
            try:
                yield _load(block.strip())
            except ValueError:
                continue
    found = []
    at, failures = text.find("{"), 0
    while at >= 0 and failures < _ATTEMPTS:
        try:
            value, end = _DECODER.raw_decode(text, at)
            found.append(_checked(text[at:end], value))
        except (ValueError, RecursionError):
            failures, end = failures + 1, at + 1
        at = text.find("{", end)
    yield from reversed(found)


def _takes_text(spec: Spec) -> bool:
    if isinstance(spec, UnionSpec):
        return any(_takes_text(option) for option in spec.options)
    return isinstance(spec, AnySpec) or is_text(spec)


def is_word(spec: Spec) -> TypeGuard[EnumSpec]:
    """Whether every value is one of several words."""
    return isinstance(spec, EnumSpec) and is_text(spec)


def _only_field(spec: Spec) -> str | None:
    """Return the only field, or only required field, of a dataclass."""
    if not isinstance(spec, DataclassSpec):
        return None
    own = [name for name in spec.fields if name != "metadata"]
    needed = [name for name in own if name not in spec.optional] or own
    return needed[0] if len(needed) == 1 else None


def text_field(spec: Spec) -> str | None:
    """Return the only field, or only required field, of a dataclass if it is a string."""
    name = _only_field(spec)
    if name is None:
        return None
    assert isinstance(spec, DataclassSpec)
    return name if _takes_text(spec.fields[name]) else None


def _tools_of(spec: Spec) -> dict[str, tuple[ChatTool, Spec]]:
    """Return the tools of a spec by name, and the spec of each one's arguments."""
    members = {name: one for name, one in members_of(spec).items() if isinstance(one, _Record)}
    if not members and isinstance(spec, _Record):
        members = {spec.cls.__name__: spec}
    tools: dict[str, tuple[ChatTool, Spec]] = {}
    for name, member in members.items():
        title = tool_name(name)
        title = title if title not in tools else f"{title}_{len(tools) + 1}"
        schema = without_metadata(member.json_schema())
        if schema.get("type") != "object":  # a class that contains itself is a reference
            schema = {"type": "object", **schema}
        tool = ChatTool(name=title, description=_document(member, schema), parameters=schema)
        tools[title] = (tool, member)
    if not tools and not isinstance(spec, AnySpec | DictSpec) and not _takes_text(spec):
        schema = {"type": "object", "properties": {"action": spec.json_schema()}}
        tool = ChatTool(name="act", description="Take the next action.", parameters=schema)
        schema |= {"required": ["action"], "additionalProperties": False}
        definitions = schema["properties"]["action"].pop("$defs", None)
        if definitions:
            schema["$defs"] = definitions
        tools["act"] = (tool, spec)
    return tools


def tool_name(class_name: str) -> str:
    """Return the name of the tool for a class of actions: `MoveAction` is `move`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
    name = re.sub(r"[^a-z0-9_-]+", "_", words)[:64]
    return name.removesuffix("_action") or name


def _document(spec: _Record, schema: dict[str, Any]) -> str:
    """Return what the class says of itself, and move what it says of its fields to the schema."""
    text = re.sub(r"(?m)^(\s*)Attributes:", r"\1Args:", docstring(spec.cls))
    documentation = read_docstring(text)
    for name, field in schema.get("properties", {}).items():
        if name in documentation.arguments:
            field.setdefault("description", documentation.arguments[name])
    return str(spec.notes.get("description") or documentation.text)


def without_metadata(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove the base field of actions, which is not the model's, from a schema."""
    properties = schema.get("properties")
    if isinstance(properties, dict):
        properties.pop("metadata", None)
    return schema
