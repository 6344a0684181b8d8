"""System calls, for those without a Python function: made at once, or as values to be made later.

A list of such values spawns a session. The walls build it once; either `perform` or the compiled
extension makes the calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterable
from typing import Any, NamedTuple

from envweave.sandbox.walls.syscall_numbers import NUMBERS, number

# PyDLL keeps the GIL during a call: between `clone` and the child's first own instruction no
# other thread of this process may run Python.
libc = ctypes.PyDLL(None, use_errno=True)
_syscall = libc.syscall
_syscall.restype = ctypes.c_long
_python = ctypes.pythonapi

CLONE_PIDFD = 0x1000
NEW_MOUNTS = 0x0002_0000
NEW_CGROUPS = 0x0200_0000
NEW_HOST_NAME = 0x0400_0000
NEW_IPC = 0x0800_0000
NEW_USERS = 0x1000_0000
NEW_PIDS = 0x2000_0000
NEW_NETWORK = 0x4000_0000


def call(name: str, *arguments: Any) -> int:
    """Make a system call and return what it returns.

    Args:
        name: As in the kernel's table.
        arguments: Integers, memory (passed as a pointer), or ctypes objects.

    Raises:
        OSError: The kernel refused, or has no such call; the message names the call.
    """
    converted = [_as_argument(one) for one in arguments]
    result = int(_syscall(ctypes.c_long(number(name)), *converted))
    if result < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, f"{name}: {os.strerror(failure)}")
    return result


def _as_argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_long(value)
    if isinstance(value, bytearray):
        return ctypes.byref(ctypes.c_char.from_buffer(value))
    return value


def clone(flags: int, *, alone: bool = False) -> tuple[int, int]:
    """Fork this process, into new namespaces by `flags`.

    Args:
        flags: The flags of `clone`.
        alone: Whether this is the only thread. Then the child has nothing to clean up, and no fork
            hooks are run, which would take most of a millisecond.

    Returns:
        The child's process id and its pidfd; in the child, 0 and -1.
    """
    descriptor = ctypes.c_int(-1)
    if not alone:
        _python.PyOS_BeforeFork()
    # The order of the arguments that both architectures agree on: flags, stack, parent_tid.
    result = int(
        _syscall(
            ctypes.c_long(number("clone")),
            ctypes.c_long(flags | CLONE_PIDFD | signal.SIGCHLD),
            ctypes.c_long(0),
            ctypes.byref(descriptor),
            ctypes.c_long(0),
            ctypes.c_long(0),
        )
    )
    if result == 0:
        if not alone:
            _python.PyOS_AfterFork_Child()
        return 0, -1
    failure = ctypes.get_errno()
    if not alone:
        _python.PyOS_AfterFork_Parent()
    if result < 0:
        raise OSError(failure, f"clone: {os.strerror(failure)}")
    return result, descriptor.value


def process_control(option: int, *arguments: int) -> int:
    """Call `prctl`."""
    return call("prctl", option, *(*arguments, 0, 0, 0, 0)[:4])


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    call("unshare", flags)


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


def deferred(
    name: str,
    *arguments: int | bytes | bytearray,
    result: int | None = None,
    ignored_errno: int = 0,
    zeroed: bytearray | None = None,
) -> Syscall:
    """Return a call by its name, to be made later."""
    return Syscall(NUMBERS.get(name, -1), arguments, result, ignored_errno, zeroed, name)


def deferred_prctl(option: int, *arguments: int, ignored_errno: int = 0) -> Syscall:
    """Return a call of `prctl`, to be made later."""
    return deferred("prctl", option, *(*arguments, 0, 0, 0, 0)[:4], ignored_errno=ignored_errno)


def perform(calls: Iterable[Syscall]) -> None:
    """Make calls, in order, up to the first that fails.

    Raises:
        OSError: A call failed, or did not have the expected outcome. The message names it.
    """
    for one in calls:
        try:
            result = call(one.name, *one.arguments)
        except OSError as error:
            if error.errno != one.ignored_errno:
                raise
            continue
        if (one.result is not None and result != one.result) or (one.zeroed and any(one.zeroed)):
            raise refusal(one, errno.EPERM)


def refusal(one: Syscall, number: int) -> OSError:
    """Return the error for a call that failed."""
    return OSError(number, f"{one.name}: {os.strerror(number)}")
