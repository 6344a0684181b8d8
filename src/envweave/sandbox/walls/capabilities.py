"""Capabilities and privileges: a session has none, and gets none from any program that it starts.

Without them a session is an ordinary user in every respect: it cannot mount, trace other processes,
set the clock or open raw devices. In a new user namespace it would start with all of them.
"""

from __future__ import annotations

import ctypes
import errno
import signal
import struct

from envweave.sandbox.walls import kernel

_SET_PARENT_DEATH_SIGNAL = 1
_SET_DUMPABLE = 4
_SET_SECURE_BITS = 28
_SET_NO_NEW_PRIVILEGES = 38
_AMBIENT = 47
_CLEAR_AMBIENT = 4

# Root has no special rights, changing the user id grants none, none are kept or made ambient, and
# all of this is locked.
_SECURE_BITS = 0xEF

_VERSION_3 = 0x2008_0522
_HEADER = struct.pack("<Ii", _VERSION_3, 0)

NO_NEW_PRIVILEGES = kernel.deferred_prctl(_SET_NO_NEW_PRIVILEGES, 1)
DIE_WITH_PARENT = kernel.deferred_prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
DUMPABLE = kernel.deferred_prctl(_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    """Ignore the privileges of set-user-id programs, irrevocably."""
    kernel.perform([NO_NEW_PRIVILEGES])


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends.

    The kernel resets it on `fork`, and when user id or capabilities change: call it last.
    """
    kernel.perform([DIE_WITH_PARENT])


def dumpable() -> None:
    """Allow processes with the right to trace this one to do so after a change of user."""
    kernel.perform([DUMPABLE])


def drop_all() -> None:
    """Drop every capability of this thread, and lock the ways to regain one.

    The bounding set is left as it is: emptying it takes longer than all the rest here, a new user
    namespace fills it again, and `no_new_privileges` makes it irrelevant.

    Raises:
        OSError: Some capability is still there.
    """
    kernel.perform(drop_calls())


def drop_calls() -> list[kernel.Syscall]:
    """Return the calls that `drop_all` makes."""
    left = bytearray(b"\xff" * 24)
    return [
        # A thread that may not lock these has no capability to keep; the last call makes sure.
        kernel.deferred_prctl(_SET_SECURE_BITS, _SECURE_BITS, ignored_errno=errno.EPERM),
        kernel.deferred_prctl(_AMBIENT, _CLEAR_AMBIENT),
        kernel.deferred("capset", _HEADER, bytes(24)),
        kernel.deferred("capget", _HEADER, left, zeroed=left),
    ]


def drop_effective() -> None:
    """Drop the capabilities of a new user namespace, by the one call that the filter allows.

    The locks of `drop_all` ended with the old namespace; `no_new_privileges` did not.
    """
    kernel.call("capset", _HEADER, bytes(24))


def held() -> int:
    """Return the bits of the capabilities that this thread has or could regain."""
    data = ctypes.create_string_buffer(24)
    kernel.call("capget", _HEADER, data)
    held = 0
    for part, bits in enumerate(struct.unpack("<6I", data.raw)):
        held |= int(bits) << (32 if part >= 3 else 0)
    return held
