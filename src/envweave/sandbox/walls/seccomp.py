"""Seccomp: the kernel answers each system call of a session by a program that runs before it.

This stops what no other wall reaches: the calls whose mere existence is a risk (io_uring, bpf,
userfaultfd, namespaces made inside), signals and limits set on other processes, sockets. A program
cannot be taken off again; children inherit it.

Here a `SeccompPolicy` says what each call gets, by name; `assemble` turns it into a program for a
machine.
The program compares the calling convention, searches the number in a binary tree, and ends in an
action, or looks at the arguments first. It sees arguments, never what a pointer points to.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envweave.sandbox.walls import bpf, calls, kernel
from envweave.sandbox.walls.bpf import Jump, Label, Line, Step
from envweave.sandbox.walls.syscall_numbers import (
    AARCH64,
    AUDIT_ARCH_AARCH64,
    AUDIT_ARCH_X86_64,
    X86_64,
)

ALLOW: Final = 0x7FFF_0000
NOTIFY: Final = 0x7FC0_0000
"""The call waits until the holder of the listener has answered for it."""
KILL_PROCESS: Final = 0x8000_0000
_ERRNO = 0x0005_0000

NEW_LISTENER: Final = 1 << 3
"""A flag of `install`: return a descriptor on which the calls that get `NOTIFY` are told."""

ALL_BITS: Final = (1 << 64) - 1

_SET_MODE_FILTER = 1
_NUMBER_AT, _CONVENTION_AT, _ARGUMENTS_AT = 0, 4, 16
_LOW = 0xFFFF_FFFF


def refuse(errno: int) -> int:
    """Return the action that fails a call with this errno. With 0 it seems done, and is not."""
    return _ERRNO | errno


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """Holds if an argument, of which only the bits of `mask` count, is one of `values`.

    Arguments are 64 bits wide. All values share their upper 32 bits: almost always zeros.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = ALL_BITS

    def __post_init__(self) -> None:
        if len({value >> 32 for value in self.values}) != 1:
            raise ValueError(
                f"{self}: the values differ in their upper 32 bits, or there are none."
            )
        if any(value & ~self.mask for value in self.values):
            raise ValueError(f"{self}: a value has bits that the mask leaves out.")


@dataclass(frozen=True, slots=True)
class RuleCase:
    """An action, and the checks that must all hold for it."""

    checks: tuple[ArgumentCheck, ...]
    action: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What a call gets: the action of the first case that holds, or `otherwise`."""

    otherwise: int
    cases: tuple[RuleCase, ...] = ()


@dataclass(frozen=True, slots=True)
class SeccompPolicy:
    """What every call gets.

    Attributes:
        rules: By the name of the call. A name that the machine lacks is passed over.
        default: What a call of the machine's table gets that has no rule.
        unknown: What a number gets that is not in the table: a call newer than the walls.
    """

    rules: Mapping[str, Rule]
    default: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A calling convention.

    Attributes:
        audit: How the kernel names it.
        numbers: Its table.
        end: From here up, numbers belong to another convention that shares the name.
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
    """Return the program that carries out a policy on a machine of `MACHINES`.

    A call by another convention than the machine's own kills the process: no library makes one. On
    x86_64 a number with the x32 bit gets `ENOSYS`, as from a kernel without it.
    """
    target = MACHINES[machine]
    native = Label()
    lines: list[Line] = [
        Step(bpf.LOAD, _CONVENTION_AT),
        Jump(bpf.IF_EQUAL, target.audit, then=native),
        Step(bpf.RETURN, KILL_PROCESS),
        native,
        Step(bpf.LOAD, _NUMBER_AT),
    ]
    if target.end is not None:
        inside = Label()
        lines += [
            Jump(bpf.IF_AT_LEAST, target.end, otherwise=inside),
            Step(bpf.RETURN, refuse(errno.ENOSYS)),
            inside,
        ]
    bodies: dict[Rule, Label] = {}
    lines += _search(
        [(start, bodies.setdefault(rule, Label())) for start, rule in _ranges(policy, target)]
    )
    for rule, label in bodies.items():
        lines += [label, *_body(rule)]
    return bpf.encode(lines)


def install(program: bytes, flags: int = 0) -> int:
    """Put a program before the system calls of this thread and of what it starts, for good.

    The process must have `no_new_privileges()`. Threads that it has already go on without: install
    before any is started.

    Returns:
        With `NEW_LISTENER` the descriptor on which `NOTIFY` is told, else 0.

    Raises:
        OSError: The kernel refused the program.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    return kernel.call("seccomp", _SET_MODE_FILTER, flags, _described(buffer))


def installing(buffer: ctypes.Array[ctypes.c_char]) -> calls.Syscall:
    """Return the call of `install`. The buffer holds the program, and must outlive the call."""
    return calls.call("seccomp", _SET_MODE_FILTER, 0, _described(buffer))


def _described(buffer: ctypes.Array[ctypes.c_char]) -> bytes:
    return struct.pack("<HxxxxxxQ", len(buffer) // 8, ctypes.addressof(buffer))


def _ranges(policy: SeccompPolicy, machine: Machine) -> list[tuple[int, Rule]]:
    """Return where each run of numbers with one rule starts; the last is open above."""
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


def _search(ranges: list[tuple[int, Label]]) -> list[Line]:
    """Return a binary search for the range that holds the number, which is loaded."""
    if len(ranges) == 1:
        return [Jump(bpf.GO, 0, then=ranges[0][1])]
    middle = len(ranges) // 2
    low, high = _target(ranges[:middle]), _target(ranges[middle:])
    compared = Jump(bpf.IF_AT_LEAST, ranges[middle][0], then=high[0], otherwise=low[0])
    return [compared, *low[1], *high[1]]


def _target(ranges: list[tuple[int, Label]]) -> tuple[Label, list[Line]]:
    """Return where a search among these goes on, and the lines that must stand for it."""
    if len(ranges) == 1:
        return ranges[0][1], []
    label = Label()
    return label, [label, *_search(ranges)]


def _body(rule: Rule) -> list[Line]:
    lines: list[Line] = []
    for case in rule.cases:
        fails = Label()
        for check in case.checks:
            lines += _check(check, fails)
        lines += [Step(bpf.RETURN, case.action), fails]
    return [*lines, Step(bpf.RETURN, rule.otherwise)]


def _check(check: ArgumentCheck, fails: Label) -> list[Line]:
    """Return lines that go to `fails`, or run on if the check holds."""
    at = _ARGUMENTS_AT + 8 * check.argument
    holds = Label()
    *others, last = check.values
    lines: list[Line] = []
    if check.mask >> 32:
        lines += _load(at + 4, check.mask >> 32)
        lines += [Jump(bpf.IF_EQUAL, last >> 32, otherwise=fails)]
    lines += _load(at, check.mask & _LOW)
    lines += [Jump(bpf.IF_EQUAL, value & _LOW, then=holds) for value in others]
    return [*lines, Jump(bpf.IF_EQUAL, last & _LOW, otherwise=fails), holds]


def _load(offset: int, mask: int) -> list[Line]:
    masked: list[Line] = [] if mask == _LOW else [Step(bpf.AND, mask)]
    return [Step(bpf.LOAD, offset), *masked]
