"""What a docstring says of a function, and of each of its arguments.

Google style is read, NumPy's, and reST's `:param name:`. What is none of them is plain text.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Params):\s*$")
_GOOGLE_ENTRY = re.compile(
    r"(?P<names>\*{0,2}\w+)\s*(?:\((?P<type>.*?)\))?\s*:(?:\s+(?P<text>.*))?$"
)
_NUMPY = re.compile(r"(?:Other )?Parameters\s*$")
_NUMPY_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_RULE = re.compile(r"-{3,}\s*$")
_REST = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?P<said>[^:]+):\s*(?P<text>.*)$"
)
_REST_TYPE = re.compile(r":(?:type|rtype)\b[^:]*:")


@dataclass(frozen=True, slots=True)
class Documentation:
    """What a docstring says.

    Attributes:
        text: All of it but what it says of the arguments.
        arguments: By name, what it says of each argument, on one line.
    """

    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first paragraph, on one line."""
        return _joined(self.text.split("\n\n", 1)[0].splitlines())


def read_docstring(docstring: str | None) -> Documentation:
    """Return what a docstring says. One that follows no style is all text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    kept: list[str] = []
    arguments: dict[str, str] = {}
    at = 0
    while at < len(lines):
        found, end = _section_at(lines, at)
        if end == at:
            kept.append(lines[at])
            at += 1
        else:
            arguments |= found
            at = end
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Documentation(text, arguments)


def _section_at(lines: list[str], at: int) -> tuple[dict[str, str], int]:
    """The arguments that are described from this line on, and the line behind them."""
    line = lines[at]
    if _GOOGLE.match(line):
        end = _end_of_indented(lines, at + 1)
        entries = _google(lines[at + 1 : end])
        return (entries, end) if entries else ({}, at)
    if _NUMPY.match(line) and at + 1 < len(lines) and _RULE.match(lines[at + 1]):
        end = _end_of_numpy(lines, at + 2)
        return _numpy(lines[at + 2 : end]), end
    if _REST_TYPE.match(line):
        return {}, _end_of_indented(lines, at + 1, blank_ends=True)
    if rest := _REST.match(line):
        end = _end_of_indented(lines, at + 1, blank_ends=True)
        name = rest["said"].split()[-1].lstrip("*")
        return {name: _joined([rest["text"], *lines[at + 1 : end]])}, end
    return {}, at


def _google(lines: list[str]) -> dict[str, str]:
    body = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    return _entries(body, _GOOGLE_ENTRY)


def _numpy(lines: list[str]) -> dict[str, str]:
    return _entries(lines, _NUMPY_ENTRY)


def _entries(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """What stands below each line that begins at the margin, and behind its colon."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        entry = None if line.startswith((" ", "\t")) else pattern.match(line)
        if entry is not None:
            names = [one.strip().lstrip("*") for one in entry["names"].split(",")]
            text = entry.groupdict().get("text") or ""
            found |= {name: [text] for name in names}
        else:
            for name in names:
                found[name].append(line)
    return {name: _joined(text) for name, text in found.items()}


def _end_of_indented(lines: list[str], at: int, *, blank_ends: bool = False) -> int:
    end = at
    while end < len(lines) and (
        lines[end].startswith((" ", "\t")) or (not lines[end].strip() and not blank_ends)
    ):
        end += 1
    return end


def _end_of_numpy(lines: list[str], at: int) -> int:
    """The next heading that is underlined, or the end."""
    for end in range(at, len(lines) - 1):
        if _RULE.match(lines[end + 1]) and lines[end].strip():
            return end
    return len(lines)


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
