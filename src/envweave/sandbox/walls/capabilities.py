"""Capabilities and privileges: a session has none, and gets none by any program that it starts.

Without them a session is an ordinary user in every respect: it mounts nothing, traces nobody, sets
no clock, opens no raw device. In a user namespace of its own it would begin with all of them.
"""

from __future__ import annotations

import ctypes
import errno
import signal
import struct

from envweave.sandbox.walls import calls, kernel

_SET_PARENT_DEATH_SIGNAL = 1
_SET_DUMPABLE = 4
_SET_SECURE_BITS = 28
_SET_NO_NEW_PRIVILEGES = 38
_AMBIENT = 47
_CLEAR_AMBIENT = 4

# Root is nobody special, changing the user id gives nothing, nothing is kept or made ambient, and
# all this is locked.
_SECURE_BITS = 0xEF

_VERSION_3 = 0x2008_0522
_HEADER = struct.pack("<Ii", _VERSION_3, 0)

NO_NEW_PRIVILEGES = calls.control(_SET_NO_NEW_PRIVILEGES, 1)
DIE_WITH_PARENT = calls.control(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
DUMPABLE = calls.control(_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    """Give up, for good, what a set-user-id program would bring."""
    calls.perform([NO_NEW_PRIVILEGES])


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends.

    The kernel forgets it on `fork`, and when user id or capabilities change: call it last.
    """
    calls.perform([DIE_WITH_PARENT])


def dumpable() -> None:
    """Let processes with the right to trace this one look into it, after a change of user."""
    calls.perform([DUMPABLE])


def drop_all() -> None:
    """Drop every capability that this thread has, and lock the ways back.

    What no new privilege could bring back anyhow, the bounding set, is left as it is: emptying it
    takes longer than all else here, and a new user namespace fills it again.

    Raises:
        OSError: Some capability is still there.
    """
    calls.perform(dropping())


def dropping() -> list[calls.Syscall]:
    """Return the calls of `drop_all`."""
    left = bytearray(b"\xff" * 24)
    return [
        # Whoever may not lock these has no capability that they would keep; the last makes sure.
        calls.control(_SET_SECURE_BITS, _SECURE_BITS, pardoned=errno.EPERM),
        calls.control(_AMBIENT, _CLEAR_AMBIENT),
        calls.call("capset", _HEADER, bytes(24)),
        calls.call("capget", _HEADER, left, cleared=left),
    ]


def drop_effective() -> None:
    """Drop what a new user namespace brought, by the one call that a session's filter lets pass.

    The locks of `drop_all` were left behind with the old namespace; `no_new_privileges` was not.
    """
    kernel.call("capset", _HEADER, bytes(24))


def held() -> int:
    """Return the bits of the capabilities that this thread has or could take up again."""
    data = ctypes.create_string_buffer(24)
    kernel.call("capget", _HEADER, data)
    held = 0
    for part, bits in enumerate(struct.unpack("<6I", data.raw)):
        held |= int(bits) << (32 if part >= 3 else 0)
    return held
