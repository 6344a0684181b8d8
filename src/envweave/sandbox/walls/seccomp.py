"""Seccomp: the kernel decides each system call of a session by a program that runs before it.

This stops what no other wall covers: calls whose mere existence is a risk (io_uring, bpf,
userfaultfd, nested namespaces), signals to and limits on other processes, sockets. A program cannot
be removed; children inherit it.

A `SeccompPolicy` defines the action for each call, by name; `assemble` turns it into a program for
a machine. The program compares the calling convention, finds the number by binary search, and
returns an action, in some cases after checking arguments. It sees arguments, never the memory that
a pointer refers to.

`encode` is a small assembler for classic BPF: a program is a list of lines, which are steps, jumps
and labels. Jumps only go forward, so every program ends.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.syscall_numbers import (
    AARCH64,
    AUDIT_ARCH_AARCH64,
    AUDIT_ARCH_X86_64,
    X86_64,
)

ALLOW: Final = 0x7FFF_0000
NOTIFY: Final = 0x7FC0_0000
"""The call waits for the answer of the process that holds the listener."""
KILL_PROCESS: Final = 0x8000_0000
_ERRNO = 0x0005_0000

NEW_LISTENER: Final = 1 << 3
"""A flag of `install`: return a descriptor that receives the calls with the action `NOTIFY`."""

ALL_BITS: Final = (1 << 64) - 1

_SET_MODE_FILTER = 1
_NUMBER_AT, _CONVENTION_AT, _ARGUMENTS_AT = 0, 4, 16
_LOW = 0xFFFF_FFFF

_LOAD: Final = 0x20
"""Load the 32-bit word at this offset of `struct seccomp_data`."""
_AND: Final = 0x54
_RETURN: Final = 0x06
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_GO: Final = 0x05
"""A jump without a comparison, to `then`, of any length."""

MAX_INSTRUCTIONS: Final = 4096
"""How many instructions the kernel accepts."""

_MAX_JUMP = 255
"""How many instructions a comparison can skip."""


def refuse(errno: int) -> int:
    """Return the action that fails a call with this errno. With 0 the call seems to succeed."""
    return _ERRNO | errno


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """Holds if an argument, masked by `mask`, is one of `values`.

    Arguments are 64 bits wide. All values must share their upper 32 bits: almost always zeros.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = ALL_BITS

    def __post_init__(self) -> None:
        if len({value >> 32 for value in self.values}) != 1:
            raise ValueError(f"{self}: there are no values, or they differ in their upper 32 bits.")
        if any(value & ~self.mask for value in self.values):
            raise ValueError(f"{self}: a value has bits outside the mask.")


@dataclass(frozen=True, slots=True)
class RuleCase:
    """An action, and the checks that must all hold for it."""

    checks: tuple[ArgumentCheck, ...]
    action: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The action for a call: that of the first case that holds, or `otherwise`."""

    otherwise: int
    cases: tuple[RuleCase, ...] = ()


@dataclass(frozen=True, slots=True)
class SeccompPolicy:
    """The actions for all calls.

    Attributes:
        rules: By the name of the call. Names that the machine lacks are ignored.
        default: For a call of the machine's table without a rule.
        unknown: For a number that is not in the table: a call newer than the walls.
    """

    rules: Mapping[str, Rule]
    default: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A calling convention.

    Attributes:
        audit: The kernel's `AUDIT_ARCH_` constant.
        numbers: Its syscall table.
        end: Numbers from here on belong to another convention with the same constant.
    """

    audit: int
    numbers: Mapping[str, int]
    end: int | None = None


X32_BIT: Final = 0x4000_0000

MACHINES: Final[Mapping[str, Machine]] = {
    "x86_64": Machine(AUDIT_ARCH_X86_64, X86_64, X32_BIT),
    "aarch64": Machine(AUDIT_ARCH_AARCH64, AARCH64),
}


def assemble(policy: SeccompPolicy, machine: str) -> bytes:
    """Return the program that enforces a policy on a machine of `MACHINES`.

    A call by another convention than the machine's own kills the process: no library makes one. On
    x86_64 a number with the x32 bit gets `ENOSYS`, as from a kernel without it.
    """
    target = MACHINES[machine]
    native = Label()
    lines: list[ProgramLine] = [
        Step(_LOAD, _CONVENTION_AT),
        Jump(_IF_EQUAL, target.audit, then=native),
        Step(_RETURN, KILL_PROCESS),
        native,
        Step(_LOAD, _NUMBER_AT),
    ]
    if target.end is not None:
        inside = Label()
        lines += [
            Jump(_IF_AT_LEAST, target.end, otherwise=inside),
            Step(_RETURN, refuse(errno.ENOSYS)),
            inside,
        ]
    labels: dict[Rule, Label] = {}
    lines += _search(
        [(start, labels.setdefault(rule, Label())) for start, rule in _ranges(policy, target)]
    )
    for rule, label in labels.items():
        lines += [label, *_rule_lines(rule)]
    return encode(lines)


def install(program: bytes, flags: int = 0) -> int:
    """Install a program for this thread and what it starts, irrevocably.

    The process must have `no_new_privileges()`. Existing threads are not affected: install before
    any is started.

    Returns:
        With `NEW_LISTENER` the descriptor of the listener, else 0.

    Raises:
        OSError: The kernel refused the program.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    return kernel.call("seccomp", _SET_MODE_FILTER, flags, _program_header(buffer))


def install_call(buffer: ctypes.Array[ctypes.c_char]) -> kernel.Syscall:
    """Return the call that `install` makes. The buffer holds the program, and must outlive it."""
    return kernel.deferred("seccomp", _SET_MODE_FILTER, 0, _program_header(buffer))


def _program_header(buffer: ctypes.Array[ctypes.c_char]) -> bytes:
    return struct.pack("<HxxxxxxQ", len(buffer) // 8, ctypes.addressof(buffer))


def _ranges(policy: SeccompPolicy, machine: Machine) -> list[tuple[int, Rule]]:
    """Return the start of each range of numbers with the same rule; the last is unbounded."""
    default, unknown = Rule(policy.default), Rule(policy.unknown)
    by_number = {
        number: policy.rules.get(name, default) for name, number in machine.numbers.items()
    }
    ranges: list[tuple[int, Rule]] = []
    for number in range(max(by_number) + 2):
        rule = by_number.get(number, unknown)
        if not ranges or ranges[-1][1] != rule:
            ranges.append((number, rule))
    return ranges


def _search(ranges: list[tuple[int, Label]]) -> list[ProgramLine]:
    """Return a binary search for the range of the loaded number."""
    if len(ranges) == 1:
        return [Jump(_GO, 0, then=ranges[0][1])]
    middle = len(ranges) // 2
    low, high = _target(ranges[:middle]), _target(ranges[middle:])
    compared = Jump(_IF_AT_LEAST, ranges[middle][0], then=high[0], otherwise=low[0])
    return [compared, *low[1], *high[1]]


def _target(ranges: list[tuple[int, Label]]) -> tuple[Label, list[ProgramLine]]:
    """Return where a search among these continues, and the lines for it."""
    if len(ranges) == 1:
        return ranges[0][1], []
    label = Label()
    return label, [label, *_search(ranges)]


def _rule_lines(rule: Rule) -> list[ProgramLine]:
    lines: list[ProgramLine] = []
    for case in rule.cases:
        fails = Label()
        for check in case.checks:
            lines += _check(check, fails)
        lines += [Step(_RETURN, case.action), fails]
    return [*lines, Step(_RETURN, rule.otherwise)]


def _check(check: ArgumentCheck, fails: Label) -> list[ProgramLine]:
    """Return lines that jump to `fails`, or continue if the check holds."""
    at = _ARGUMENTS_AT + 8 * check.argument
    holds = Label()
    *others, last = check.values
    lines: list[ProgramLine] = []
    if check.mask >> 32:
        lines += _load(at + 4, check.mask >> 32)
        lines += [Jump(_IF_EQUAL, last >> 32, otherwise=fails)]
    lines += _load(at, check.mask & _LOW)
    lines += [Jump(_IF_EQUAL, value & _LOW, then=holds) for value in others]
    return [*lines, Jump(_IF_EQUAL, last & _LOW, otherwise=fails), holds]


def _load(offset: int, mask: int) -> list[ProgramLine]:
    masked: list[ProgramLine] = [] if mask == _LOW else [Step(_AND, mask)]
    return [Step(_LOAD, offset), *masked]


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
        if line.code == _GO:
            return _instruction(_GO, then)
        if index not in self.far:
            return _instruction(line.code, line.value, then, otherwise)
        # Distances count from the comparison; its first jump is one further on, the other two.
        return (
            _instruction(line.code, line.value, 0, 1)
            + _instruction(_GO, then - 1 if line.then else 1)
            + _instruction(_GO, otherwise - 2 if line.otherwise else 0)
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
        if not isinstance(line, Jump) or line.code == _GO or index in self.far:
            return False
        return (
            max(self._distance(index, line.then), self._distance(index, line.otherwise)) > _MAX_JUMP
        )

    def _distance(self, index: int, label: Label | None) -> int:
        """Return how many instructions a jump skips."""
        return 0 if label is None else self.positions[label] - self.starts[index] - 1


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)
