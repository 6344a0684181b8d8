"""System calls as values: what a wall has to say to the kernel, written down to be made later.

A session is born by a list of them. The list is written by the walls, once; who makes the calls,
this module or the compiled extension, makes no difference to what they are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import NamedTuple

from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.syscall_numbers import NUMBERS


class Syscall(NamedTuple):
    """A system call, and what it has to come to.

    The extension reads the fields by their places.

    Attributes:
        number: In this machine's table; -1, which the kernel refuses as unknown, if it has none.
        arguments: Integers, or memory, which is passed as a pointer to it; at most six.
        result: What it must return; with `None` anything but an error.
        pardoned: The errno that is as good as success; 0 for none.
        cleared: Memory that must hold nothing but zeros afterwards.
        name: As the kernel calls it.
    """

    number: int
    arguments: tuple[int | bytes | bytearray, ...]
    result: int | None
    pardoned: int
    cleared: bytearray | None
    name: str


def call(
    name: str,
    *arguments: int | bytes | bytearray,
    result: int | None = None,
    pardoned: int = 0,
    cleared: bytearray | None = None,
) -> Syscall:
    """Write down a call by its name."""
    return Syscall(NUMBERS.get(name, -1), arguments, result, pardoned, cleared, name)


def control(option: int, *arguments: int, pardoned: int = 0) -> Syscall:
    """Write down a call of `prctl`."""
    return call("prctl", option, *(*arguments, 0, 0, 0, 0)[:4], pardoned=pardoned)


def perform(calls: Iterable[Syscall]) -> None:
    """Make calls, in order, up to the first that fails.

    Raises:
        OSError: It failed, or did not come to what it must. The message names it.
    """
    for one in calls:
        try:
            result = kernel.call(one.name, *one.arguments)
        except OSError as error:
            if error.errno != one.pardoned:
                raise
            continue
        if (one.result is not None and result != one.result) or (one.cleared and any(one.cleared)):
            raise refusal(one, errno.EPERM)


def refusal(one: Syscall, number: int) -> OSError:
    """Return what a call is told to have failed with."""
    return OSError(number, f"{one.name}: {os.strerror(number)}")
