"""The fenced blocks of a Markdown text."""

import re
import textwrap
from dataclasses import dataclass

_OPENING = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*) *(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Fence:
    """One block between fences.

    Attributes:
        language: The word after the opening fence; empty if there is none.
        title: The file that the block is the content of, if it says so.
        rest: Whatever else stands after the opening fence.
        code: What is between the fences, without their indentation.
        line: The line of the opening fence, from 1.
        follows: Whether only blank lines lie between this block and the one before.
    """

    language: str
    title: str | None
    rest: str
    code: str
    line: int
    follows: bool


def read_fences(text: str) -> list[Fence]:
    """Return the blocks in order."""
    fences: list[Fence] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    follows = False
    for number, line in lines:
        opening = _OPENING.match(line)
        if opening is None:
            follows = follows and not line.strip()
            continue
        closing = opening["indent"] + opening["ticks"]
        body = []
        for _, inner in lines:
            if inner.rstrip() == closing:
                break
            body.append(inner)
        else:
            raise ValueError(f"the block that opens in line {number} is never closed")
        title = _TITLE.search(opening["rest"])
        rest = _TITLE.sub("", opening["rest"]).strip()
        code = textwrap.dedent("\n".join(body)) + "\n"
        found = title[1] if title else None
        fences.append(Fence(opening["language"], found, rest, code, number, follows))
        follows = True
    return fences
