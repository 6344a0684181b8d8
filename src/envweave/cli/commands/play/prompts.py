"""Prompts that read an action from a person, generated from its spec."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from envweave.cli.spec_table import fields_of
from envweave.codec import Spec
from envweave.codec.containers import (
    DataclassSpec,
    DictSpec,
    PydanticSpec,
    TupleSpec,
    UnionSpec,
    members_of,
)
from envweave.codec.hints import Declared
from envweave.codec.records import StructSpec
from envweave.codec.scalars import BoolSpec, EnumSpec, FloatSpec, IntSpec, StrSpec
from envweave.errors import SpecError

COMMANDS = {
    ":quit": "end the game, as Ctrl-D does",
    ":reset": "begin another episode",
    ":random": "act at random once",
    ":state": "show the state of the environment",
    ":help": "show this list",
}
BLOCK_OPENS, BLOCK_ENDS = "<<", ">>"
_CODE = frozenset({"code", "program", "source"})
_TRUE, _FALSE = ("y", "yes", "true", "1"), ("n", "no", "false", "0")
_MISSING: Any = object()


class CommandGivenError(Exception):
    """The player typed a command instead of a value."""


@final
class LineReader:
    """Reads lines from standard input, a terminal or not.

    Args:
        write: Shows text without a line break after it.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.is_terminal = sys.stdin.isatty()
        if self.is_terminal and sys.stdout.isatty():
            import readline  # noqa: F401 - `input` then has a history and can edit

    def read(self, prompt: str) -> str:
        """Return the next line, without its end.

        Raises:
            EOFError: There is none.
            CommandGivenError: It is a command.
        """
        line = self.read_text(prompt)
        if line.strip() in COMMANDS:
            raise CommandGivenError(line.strip())
        return line

    def read_text(self, prompt: str) -> str:
        """Return the next line, whatever it is."""
        if self.is_terminal and sys.stdout.isatty():
            return input(prompt)
        self._write(prompt)
        line = sys.stdin.readline()
        if not line:
            self._write("\n")
            raise EOFError
        line = line.removesuffix("\n").removesuffix("\r")
        self._write("\n" if self.is_terminal else f"{line}\n")
        return line


@final
class ActionPrompt:
    """Asks for an action, one field after the other, until each fits its spec.

    Args:
        reader: Where the lines come from.
        explain: Shows a hint, or what is wrong with a line.
    """

    def __init__(self, reader: LineReader, explain: Callable[[str], None]) -> None:
        self._reader = reader
        self._explain = explain

    def ask(self, spec: Spec, name: str, mask: Any = None) -> Any:
        """Return an action of this spec.

        Args:
            spec: The spec of the action.
            name: What it is called if it has no fields.
            mask: Which choices are legal, as an environment's action mask says.

        Raises:
            EOFError: There are no more lines.
            CommandGivenError: A line is a command.
        """
        return self._ask(spec, "", name, _legal(mask), _MISSING)

    def _ask(self, spec: Spec, path: str, name: str, legal: Sequence[int] | None, kept: Any) -> Any:
        if isinstance(spec, Declared):
            return self._ask(spec.spec, path, name, legal, kept)
        fields = _fields(spec)
        if fields is not None and kept is _MISSING:
            return self._ask_fields(spec, fields, path, name, legal)
        if isinstance(spec, TupleSpec) and kept is _MISSING:
            return [
                self._ask(item, f"{path or name}[{index}]", name, None, _MISSING)
                for index, item in enumerate(spec.items)
            ]
        if isinstance(spec, UnionSpec) and any(isinstance(one, StrSpec) for one in spec.options):
            return self._ask_text(spec, path or name, kept)  # what a person means by text
        members = members_of(spec)
        if len(members) > 1 and kept is _MISSING:
            chosen = self._choose(list(members), f"{path or name}, one of", None, _MISSING)
            return self._ask(members[chosen], path, name, None, _MISSING)
        return self._ask_value(spec, path or name, legal, kept)

    def _ask_fields(
        self, spec: Any, fields: dict[str, Spec], path: str, name: str, legal: Sequence[int] | None
    ) -> Any:
        given: dict[str, Any] = {}
        for field, one in fields.items():
            inner = f"{path}.{field}" if path else field
            default = _default(spec, field)
            value = self._ask(one, inner, inner, legal if len(fields) == 1 else None, default)
            if value is not default or default is _MISSING:
                given[field] = value
        try:
            return spec.check(given, path or name)
        except SpecError as error:  # the class refuses fields that fit each by itself
            self._explain(str(error))
            return self._ask_fields(spec, fields, path, name, legal)

    def _ask_value(self, spec: Spec, name: str, legal: Sequence[int] | None, kept: Any) -> Any:
        read: Callable[[str], Any]
        match spec:
            case EnumSpec(values=values):
                return self._choose(values, name, legal, kept)
            case BoolSpec():
                hint, read = "y or n", _read_bool
            case IntSpec(low=low) if legal is not None:
                numbers = [(low or 0) + index for index in legal]
                hint, read = _join(numbers), _one_of(numbers)
            case IntSpec():
                hint, read = _allowed(spec) or "a whole number", _read_int
            case FloatSpec():
                hint, read = _allowed(spec) or "a number", _read_float
            case StrSpec(binary=False):
                return self._ask_text(spec, name, kept)
            case _:
                hint, read = _json_hint(spec), _read_json
        while True:
            line = self._reader.read(_prompt(name, hint, kept)).strip()
            if not line and kept is not _MISSING:
                return kept
            try:
                return spec.check(read(line), name)
            except (SpecError, ValueError) as error:
                self._explain(str(error))

    def _ask_text(self, spec: Spec, name: str, kept: Any) -> str:
        is_code = name.rpartition(".")[2] in _CODE
        limit = _allowed(spec) if isinstance(spec, StrSpec) else ""
        hint = "code; an empty line ends it" if is_code else limit or "text"
        while True:
            text = self._reader.read(_prompt(name, hint, kept))
            if not text and kept is not _MISSING:
                return str(kept)
            if text.strip() == BLOCK_OPENS:
                text = self._read_block(BLOCK_ENDS)
            elif is_code and text:
                rest = self._read_block("")
                text = f"{text}\n{rest}" if rest else text
            elif is_code:
                continue
            try:
                return str(spec.check(text, name))
            except SpecError as error:
                self._explain(str(error))

    def _read_block(self, last: str) -> str:
        lines = []
        try:
            while (line := self._reader.read_text("… ")).strip() != last:
                lines.append(line)
        except EOFError:
            if not lines:
                raise
        return "\n".join(lines)

    def _choose(
        self, values: Sequence[Any], name: str, legal: Sequence[int] | None, kept: Any
    ) -> Any:
        indices = [i for i in legal if i < len(values)] if legal is not None else range(len(values))
        shown = {index: _show_choice(values[index]) for index in indices}
        are_numbered = not any(text.lstrip("-").isdecimal() for text in shown.values())
        if are_numbered:
            listed = "  ".join(f"{index + 1}) {text}" for index, text in shown.items())
        else:
            listed = " or ".join(shown.values())
        while True:
            line = self._reader.read(_prompt(name, listed, kept)).strip()
            if not line and kept is not _MISSING:
                return kept
            for index, text in shown.items():
                if line == text:
                    return values[index]
            if are_numbered and line.isdecimal() and int(line) - 1 in shown:
                return values[int(line) - 1]
            self._explain(f"{line!r} is not one of the choices: {listed}.")


def _fields(spec: Spec) -> dict[str, Spec] | None:
    """Return the fields to ask for; `None` if it has none of its own."""
    if isinstance(spec, DataclassSpec | PydanticSpec | StructSpec | DictSpec):
        if spec.fields is None:
            return None
        return {name: one for name, one in spec.fields.items() if name != "metadata"}
    return None


def _default(spec: Any, field: str) -> Any:
    """Return the value that a field keeps if nothing is typed: a marker if it has none."""
    if field not in spec.optional:
        return _MISSING
    found = getattr(getattr(spec, "cls", None), field, None)
    return _Kept(found)


class _Kept:
    """The default of a field, which the class fills in itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        plain = isinstance(self._value, str | int | float) and self._value != ""
        return str(self._value) if plain else "default"


def _legal(mask: Any) -> list[int] | None:
    return None if mask is None else np.flatnonzero(np.asarray(mask)).tolist()


def _prompt(name: str, hint: str, kept: Any) -> str:
    default = "" if kept is _MISSING else f" [{kept}]"
    return f"{name} ({hint}){default}: "


def _allowed(spec: Spec) -> str:
    (field,) = fields_of(spec)
    return field.allowed


def _json_hint(spec: Spec) -> str:
    fields = fields_of(spec)
    kind = " ".join(filter(None, [fields[0].type, fields[0].allowed])) if fields else "value"
    return f"{kind}, as JSON"


def _show_choice(value: Any) -> str:
    return str(value.value if isinstance(value, enum.Enum) else value)


def _join(numbers: Sequence[int]) -> str:
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers)) or "no choice is legal"


def _one_of(numbers: Sequence[int]) -> Callable[[str], int]:
    def read(line: str) -> int:
        number = _read_int(line)
        if numbers and number not in numbers:
            raise ValueError(f"{number} is not legal now. Legal: {_join(numbers)}.")
        return number

    return read


def _read_int(line: str) -> int:
    try:
        return int(line)
    except ValueError:
        raise ValueError(f"{line!r} is not a whole number.") from None


def _read_float(line: str) -> float:
    try:
        return float(line)
    except ValueError:
        raise ValueError(f"{line!r} is not a number.") from None


def _read_bool(line: str) -> bool:
    if line.lower() in _TRUE + _FALSE:
        return line.lower() in _TRUE
    raise ValueError(f"{line!r} is neither y nor n.")


def _read_json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{line!r} is not valid JSON: {error}.") from None
