"""A small assembler of the kernel's classic packet filter language, as far as seccomp takes it.

A program is a list of lines: steps, jumps and labels. Jumps only go forward, which is why every
program ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

LOAD: Final = 0x20
"""Take the 32-bit word at this offset of the call's description."""
AND: Final = 0x54
RETURN: Final = 0x06
IF_EQUAL: Final = 0x15
IF_AT_LEAST: Final = 0x35
GO: Final = 0x05
"""A jump without a comparison, to `then`, of any length."""

LONGEST: Final = 4096
"""How many instructions the kernel takes."""

_REACH = 255
"""How many instructions a comparison can pass over."""


@final
class Label:
    """A place in a program: the line after it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that does not jump."""

    code: int
    value: int


@dataclass(frozen=True, slots=True)
class Jump:
    """A comparison with what was loaded; where no label is given, the program runs on."""

    code: int
    value: int
    then: Label | None = None
    otherwise: Label | None = None


Line = Step | Jump | Label


def encode(lines: Iterable[Line]) -> bytes:
    """Return a program as the kernel reads it.

    A comparison that must reach further than it can goes to one of two plain jumps behind it.

    Raises:
        ValueError: The program is longer than the kernel takes.
    """
    layout = _Layout(list(lines))
    layout.settle()
    program = b"".join(layout.encoded(index) for index in range(len(layout.lines)))
    if len(program) > LONGEST * 8:
        raise ValueError(f"The program has {len(program) // 8} instructions; {LONGEST} may be.")
    return program


@dataclass(slots=True)
class _Layout:
    """Where the lines of a program stand, if the jumps in `far` take three instructions."""

    lines: list[Line]
    far: set[int] = field(default_factory=set)
    starts: list[int] = field(default_factory=list)
    places: dict[Label, int] = field(default_factory=dict)

    def settle(self) -> None:
        """Find the jumps that are far. Each makes others longer, so until there are no more."""
        while True:
            self._lay()
            farther = {index for index in range(len(self.lines)) if self._falls_short(index)}
            if not farther:
                return
            self.far |= farther

    def encoded(self, index: int) -> bytes:
        line = self.lines[index]
        if isinstance(line, Label):
            return b""
        if isinstance(line, Step):
            return _instruction(line.code, line.value)
        then, otherwise = self._over(index, line.then), self._over(index, line.otherwise)
        if line.code == GO:
            return _instruction(GO, then)
        if index not in self.far:
            return _instruction(line.code, line.value, then, otherwise)
        # Distances count from the comparison; its first jump stands one further on, the other two.
        return (
            _instruction(line.code, line.value, 0, 1)
            + _instruction(GO, then - 1 if line.then else 1)
            + _instruction(GO, otherwise - 2 if line.otherwise else 0)
        )

    def _lay(self) -> None:
        self.starts.clear()
        at = 0
        for index, line in enumerate(self.lines):
            self.starts.append(at)
            if isinstance(line, Label):
                self.places[line] = at
            else:
                at += 3 if index in self.far else 1

    def _falls_short(self, index: int) -> bool:
        line = self.lines[index]
        if not isinstance(line, Jump) or line.code == GO or index in self.far:
            return False
        return max(self._over(index, line.then), self._over(index, line.otherwise)) > _REACH

    def _over(self, index: int, label: Label | None) -> int:
        """Return how many instructions a jump passes over."""
        return 0 if label is None else self.places[label] - self.starts[index] - 1


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)
