"""System calls as values, to be made later.

A list of them spawns a session. The walls build the list once; either this module or the compiled
extension makes the calls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import NamedTuple

from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.syscall_numbers import NUMBERS


class Syscall(NamedTuple):
    """A system call, and its expected outcome.

    The extension reads the fields by position.

    Attributes:
        number: Its number on this machine; -1, which the kernel refuses as unknown, if it has none.
        arguments: Integers, or memory, which is passed as a pointer; at most six.
        result: What it must return; `None` for anything but an error.
        ignored_errno: The error that counts as success; 0 for none.
        zeroed: Memory that must contain only zeros afterwards.
        name: The name of the call.
    """

    number: int
    arguments: tuple[int | bytes | bytearray, ...]
    result: int | None
    ignored_errno: int
    zeroed: bytearray | None
    name: str


def call(
    name: str,
    *arguments: int | bytes | bytearray,
    result: int | None = None,
    ignored_errno: int = 0,
    zeroed: bytearray | None = None,
) -> Syscall:
    """Return a call by its name."""
    return Syscall(NUMBERS.get(name, -1), arguments, result, ignored_errno, zeroed, name)


def control(option: int, *arguments: int, ignored_errno: int = 0) -> Syscall:
    """Return a call of `prctl`."""
    return call("prctl", option, *(*arguments, 0, 0, 0, 0)[:4], ignored_errno=ignored_errno)


def perform(calls: Iterable[Syscall]) -> None:
    """Make calls, in order, up to the first that fails.

    Raises:
        OSError: A call failed, or did not have the expected outcome. The message names it.
    """
    for one in calls:
        try:
            result = kernel.call(one.name, *one.arguments)
        except OSError as error:
            if error.errno != one.ignored_errno:
                raise
            continue
        if (one.result is not None and result != one.result) or (one.zeroed and any(one.zeroed)):
            raise refusal(one, errno.EPERM)


def refusal(one: Syscall, number: int) -> OSError:
    """Return the error for a call that failed."""
    return OSError(number, f"{one.name}: {os.strerror(number)}")
