"""A small assembler for classic BPF, as far as seccomp needs it.

A program is a list of lines: steps, jumps and labels. Jumps only go forward, so every program ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

LOAD: Final = 0x20
"""Load the 32-bit word at this offset of `struct seccomp_data`."""
AND: Final = 0x54
RETURN: Final = 0x06
IF_EQUAL: Final = 0x15
IF_AT_LEAST: Final = 0x35
GO: Final = 0x05
"""A jump without a comparison, to `then`, of any length."""

MAX_INSTRUCTIONS: Final = 4096
"""How many instructions the kernel accepts."""

_MAX_JUMP = 255
"""How many instructions a comparison can skip."""


@final
class Label:
    """A position in a program: the line after it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that does not jump."""

    code: int
    value: int


@dataclass(frozen=True, slots=True)
class Jump:
    """A comparison with the loaded word; without a label, execution continues."""

    code: int
    value: int
    then: Label | None = None
    otherwise: Label | None = None


ProgramLine = Step | Jump | Label


def encode(lines: Iterable[ProgramLine]) -> bytes:
    """Return a program in the kernel's format.

    A comparison whose target is too far away jumps to one of two plain jumps after it.

    Raises:
        ValueError: The program is longer than the kernel accepts.
    """
    layout = _Layout(list(lines))
    layout.resolve()
    program = b"".join(layout.encoded(index) for index in range(len(layout.lines)))
    if len(program) > MAX_INSTRUCTIONS * 8:
        raise ValueError(
            f"The program has {len(program) // 8} instructions, more than {MAX_INSTRUCTIONS}."
        )
    return program


@dataclass(slots=True)
class _Layout:
    """The positions of a program's lines, if the jumps in `far` take three instructions."""

    lines: list[ProgramLine]
    far: set[int] = field(default_factory=set)
    starts: list[int] = field(default_factory=list)
    positions: dict[Label, int] = field(default_factory=dict)

    def resolve(self) -> None:
        """Find the far jumps. Each makes others longer, so repeat until there are no more."""
        while True:
            self._assign_positions()
            farther = {index for index in range(len(self.lines)) if self._is_too_far(index)}
            if not farther:
                return
            self.far |= farther

    def encoded(self, index: int) -> bytes:
        line = self.lines[index]
        if isinstance(line, Label):
            return b""
        if isinstance(line, Step):
            return _instruction(line.code, line.value)
        then, otherwise = self._distance(index, line.then), self._distance(index, line.otherwise)
        if line.code == GO:
            return _instruction(GO, then)
        if index not in self.far:
            return _instruction(line.code, line.value, then, otherwise)
        # Distances count from the comparison; its first jump is one further on, the other two.
        return (
            _instruction(line.code, line.value, 0, 1)
            + _instruction(GO, then - 1 if line.then else 1)
            + _instruction(GO, otherwise - 2 if line.otherwise else 0)
        )

    def _assign_positions(self) -> None:
        self.starts.clear()
        at = 0
        for index, line in enumerate(self.lines):
            self.starts.append(at)
            if isinstance(line, Label):
                self.positions[line] = at
            else:
                at += 3 if index in self.far else 1

    def _is_too_far(self, index: int) -> bool:
        line = self.lines[index]
        if not isinstance(line, Jump) or line.code == GO or index in self.far:
            return False
        return (
            max(self._distance(index, line.then), self._distance(index, line.otherwise)) > _MAX_JUMP
        )

    def _distance(self, index: int, label: Label | None) -> int:
        """Return how many instructions a jump skips."""
        return 0 if label is None else self.positions[label] - self.starts[index] - 1


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)
