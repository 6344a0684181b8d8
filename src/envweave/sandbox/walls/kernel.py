"""System calls by number, for those without a Python function."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

from envweave.sandbox.walls.syscall_numbers import number

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
        errno = ctypes.get_errno()
        raise OSError(errno, f"{name}: {os.strerror(errno)}")
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
        alone: Whether this is the only thread. Then the child has nothing to clean up, and
            continues like its parent: what Python does in a child takes most of a millisecond.

    Returns:
        The child's process id and its pidfd; in the child, 0 and -1.
    """
    descriptor = ctypes.c_int(-1)
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
        _python.PyOS_AfterFork_Parent() if alone else _python.PyOS_AfterFork_Child()
        return 0, -1
    errno = ctypes.get_errno()
    _python.PyOS_AfterFork_Parent()
    if result < 0:
        raise OSError(errno, f"clone: {os.strerror(errno)}")
    return result, descriptor.value


def process_control(option: int, *arguments: int) -> int:
    """Call `prctl`."""
    return call("prctl", option, *(*arguments, 0, 0, 0, 0)[:4])


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    call("unshare", flags)
