"""Runs programs of the kernel's packet filter language as the kernel would, on either machine."""

from __future__ import annotations

import functools
import struct

from envweave.sandbox.walls.seccomp import MACHINES, ArgumentCheck, SeccompPolicy

_LOAD, _AND, _RETURN, _GO, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35
_DESCRIPTION = struct.Struct("<iIQ6Q")


def run_filter(
    program: bytes, convention: int, number: int, arguments: tuple[int, ...] = ()
) -> int:
    """Return the action of a program for a call. Fails where the kernel would not take it."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    described = _DESCRIPTION.pack(_signed(number), convention, 0, *padded)
    instructions = _decoded(program)
    at = loaded = 0
    while True:
        code, then, otherwise, value = instructions[at]
        at += 1
        if code == _RETURN:
            return value
        if code == _LOAD:
            assert value % 4 == 0
            (loaded,) = struct.unpack_from("<I", described, value)
        elif code == _AND:
            loaded &= value
        elif code == _GO:
            at += value
        else:
            assert code in {_IF_EQUAL, _IF_AT_LEAST}
            holds = loaded == value if code == _IF_EQUAL else loaded >= value
            at += then if holds else otherwise


def decide(
    policy: SeccompPolicy, machine: str, number: int, arguments: tuple[int, ...] = ()
) -> int:
    """Return what a policy says of a call, read off its rules."""
    name = names_of(machine).get(number)
    if name is None:
        return policy.unknown
    rule = policy.rules.get(name)
    if rule is None:
        return policy.default
    for case in rule.cases:
        if all(_holds(check, arguments) for check in case.checks):
            return case.action
    return rule.otherwise


def _holds(check: ArgumentCheck, arguments: tuple[int, ...]) -> bool:
    given = (*arguments, 0, 0, 0, 0, 0, 0)[check.argument]
    return given & check.mask in check.values


@functools.cache
def _decoded(program: bytes) -> list[tuple[int, int, int, int]]:
    instructions = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(instructions) <= 4096
    return instructions


@functools.cache
def names_of(machine: str) -> dict[int, str]:
    """Return the table of a machine by number."""
    return {number: name for name, number in MACHINES[machine].numbers.items()}


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
