"""The request of a session: a fork of the template that walls itself in before it reads a word.

The order matters. Mounting wants rights that the user namespace takes away; changing the user or
the namespace clears the wish to die with the parent; Landlock and the limits want system calls
that the filter refuses. So: its socket, cgroup, descriptors, work folder, user, namespace,
rights, death, limits, Landlock, and the filter last.

All of it is a list of system calls, written before the fork. The compiled extension, where there
is one, makes them without running any Python in between: each page of the interpreter that a new
process touches costs it a fault.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from envweave.sandbox.limits import Limits
from envweave.sandbox.protocol.messages import DESCRIPTOR, SpawnRequest
from envweave.sandbox.protocol.orders import TemplatePlan
from envweave.sandbox.walls import (
    calls,
    capabilities,
    kernel,
    landlock,
    mounts,
    namespaces,
    policy,
    rlimits,
    seccomp,
    syscall_numbers,
)
from envweave.sandbox.walls.calls import Syscall, call

_ANY_PID = 0x7FFF_FFF1
"""Stands in the assembled filter for the process id that a session will have."""

_RULESET, _PROCESSES, _LIFE, _FREE = DESCRIPTOR + 1, DESCRIPTOR + 2, DESCRIPTOR + 3, DESCRIPTOR + 4
"""What a session has open while it is born, and the first number above."""

_ALL = 0xFFFF_FFFF
_HERE = -100  # AT_FDCWD

_NO_CHILD_WAIT = 2  # SA_NOCLDWAIT
_LEAVING_NO_DEAD = call(
    "rt_sigaction",
    int(signal.SIGCHLD),
    struct.pack("<4Q", 0, _NO_CHILD_WAIT, 0, 0),
    0,
    8,
)
"""Has the kernel forget children as they end: nobody waits for a branch, and until somebody did, it
would count as one of the session's processes."""

Step = tuple[str, Syscall]
"""A call, after the name of the wall that it is for."""


class WallError(Exception):
    """A wall could not be put up.

    Attributes:
        wall: Its name.
        errno: What the kernel said.
    """

    def __init__(self, wall: str, error: OSError) -> None:
        super().__init__(f"{wall}: {error.strerror or error}")
        self.wall = wall
        self.errno = error.errno or 0


class Native(Protocol):
    """The compiled extension, `envweave.sandbox._spawn`."""

    def spawn(self, flags: int, calls: list[Syscall], alone: int, /) -> tuple[int, int, int, int]:
        """Fork as `kernel.clone` does, and make the calls in the child.

        Returns:
            What that returns, and in the child which call failed (-1 for none), and its errno.
        """


@dataclass(frozen=True, slots=True)
class Walls:
    """What is prepared once in the template, so that a request is quick.

    Attributes:
        filter: The assembled seccomp program, with `_ANY_PID` where it names the session.
        processes: The host's `/proc`, for maps of user ids; -1 without namespaces.
        first: What every request begins with, once the session's own socket is in its place.
        last: What every request ends with.
        native: The extension, where it is used.
        alone: Whether the template has but one thread.
        kept: What the calls point to, and what the template alone may hold.
        held: What the last request was made from.
    """

    plan: TemplatePlan
    limits: Limits
    filter: bytes
    processes: int
    first: list[Step]
    last: list[Step]
    native: Native | None
    alone: bool
    kept: tuple[object, ...]
    held: list[object] = field(default_factory=list)

    @property
    def clone_flags(self) -> int:
        """The namespaces of a session."""
        return namespaces.SESSION if self.plan.isolation == "namespace" else 0


class Forked(NamedTuple):
    """Where a fork left this process.

    Attributes:
        pid: Of the session; 0 in it.
        process: A descriptor of it; -1 in it.
        error: In a session, why its walls do not stand. It must end.
    """

    pid: int
    process: int
    error: WallError | None = None


def prepare(plan: TemplatePlan, processes: int, native: Native | None) -> Walls:
    """Prepare the walls of all sessions. Called in the template, once, behind its own walls.

    Args:
        plan: The template's.
        processes: See `Walls`, as for `native`.
        native: The extension, if it is there and may be used.
    """
    limits = Limits(
        memory_bytes=plan.memory_bytes,
        disk_bytes=plan.disk_bytes,
        files=plan.files,
        open_files=plan.open_files,
        processes=plan.processes,
    )
    namespace = plan.isolation == "namespace"
    abi = landlock.abi() if plan.isolation != "none" else 0
    program = _assemble(plan, abi) if plan.isolation != "none" else b""
    buffer = ctypes.create_string_buffer(program, len(program))
    ruleset = -1
    if namespace and abi > 0:
        ruleset = _rules(plan, ["/"], mounts.HOME)
    life, template_end = os.pipe()
    processes = _moved_up(processes)
    kept = {_RULESET: _moved_up(ruleset), _PROCESSES: processes, _LIFE: _moved_up(life)}
    # So that no session's socket ever comes in where a request puts something else first.
    while os.open("/dev/null", os.O_RDONLY) < _FREE:
        pass
    counted_alone = namespace or plan.users > 0
    counted_with = 0 if counted_alone else rlimits.count_tasks(os.getuid())
    wanted = rlimits.for_session(limits, counted_with=counted_with)
    last = [*_giving_up_rights(plan), *_dying_with_template()]
    if namespace and not plan.shell:
        last += _for("branches", [_LEAVING_NO_DEAD])
    last += _for("limits", rlimits.applying(wanted))
    if ruleset >= 0:
        last += _for("landlock", [landlock.restricting(_RULESET, abi)])
    last += _for("descriptors", [call("close_range", _RULESET, _LIFE, 0)])
    if namespace:
        last += _for("seccomp", [seccomp.installing(buffer)])
    return Walls(
        plan,
        limits,
        filter=program,
        processes=processes,
        first=_for("descriptors", _taking_descriptors(kept)),
        last=last,
        native=native,
        alone=_count_threads(processes) == 1,
        kept=(buffer, template_end),
    )


def restrict_template(plan: TemplatePlan) -> None:
    """Have Landlock keep the template, and with it all sessions, to what they may read.

    Here all work folders may be written to. A session adds rules by which only its own may: what
    both allow is allowed. So the long list of packages is not gone through for each.

    Raises:
        OSError: The kernel has no Landlock.
    """
    rules = _rules(plan, plan.shown, plan.work, listed=plan.listed)
    capabilities.no_new_privileges()
    landlock.restrict_self(rules)
    os.close(rules)


def spawn(walls: Walls, request: SpawnRequest, descriptor: int, cgroup_files: list[int]) -> Forked:
    """Fork a session and wall it in. Returns twice: in the template, and in the session.

    Args:
        walls: What was prepared.
        request: What it is to be.
        descriptor: Of its end of the socket.
        cgroup_files: What it writes to so that it is in its cgroup.

    Raises:
        OSError: The kernel makes no more processes or namespaces. In the template only.
    """
    steps = _steps(walls, request, descriptor, cgroup_files)
    failed = -1
    if walls.native is not None:
        made = [one for _, one in steps]
        # Held on to, or every session would begin by freeing them.
        walls.held[:] = [steps, made]
        pid, process, failed, number = walls.native.spawn(walls.clone_flags, made, walls.alone)
    else:
        walls.held[:] = [steps]
        pid, process = kernel.clone(walls.clone_flags, alone=walls.alone)
    if pid != 0:
        return Forked(pid, process)
    try:
        if walls.native is None:
            _perform(steps)
        elif failed >= 0:
            wall, one = steps[failed]
            raise WallError(wall, calls.refusal(one, number))
        if walls.plan.isolation != "namespace":
            os.environ.update(HOME=request.work, TMPDIR=f"{request.work}/tmp")  # noqa: S108
        if walls.plan.isolation == "landlock":
            _finish(walls)
    except WallError as error:
        return Forked(0, -1, error)
    except BaseException:  # noqa: BLE001 - it must not go on as a second template
        os._exit(1)
    return Forked(0, -1)


def take_user(user: int) -> None:
    """Become another user, for good."""
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _steps(
    walls: Walls, request: SpawnRequest, descriptor: int, cgroup_files: list[int]
) -> list[Step]:
    """Return every call of a request, in order."""
    plan = walls.plan
    namespace = plan.isolation == "namespace"
    # First, so that the session can say why a later step failed. No file of a cgroup is lost by
    # it: `prepare` keeps what comes in above `_FREE`.
    steps = _for("descriptors", [call("dup3", descriptor, DESCRIPTOR, os.O_CLOEXEC)])
    # By the session itself: who puts another process into a cgroup waits for every fork around.
    steps += _for("cgroup", [call("write", file, b"0", 1, result=1) for file in cgroup_files])
    steps += walls.first
    if namespace:
        owner = namespaces.USER if request.user is None else request.user
        options = mounts.work_options(walls.limits.disk_bytes, walls.limits.files, owner)
        steps += _for("work folder", mounts.mounting_work(options, shell=plan.shell))
    else:
        steps += _for("work folder", [call("chdir", os.fsencode(request.work))])
    if request.user is not None:
        user = (request.user,) * 3
        steps += _for("user", [call("setresgid", *user), call("setresuid", *user)])
        if namespace:
            # To the template, which mounts for its branches.
            steps += _for("user", [capabilities.DUMPABLE])
    return steps + walls.last


def _assemble(plan: TemplatePlan, abi: int) -> bytes:
    namespace = plan.isolation == "namespace"
    return seccomp.assemble(
        policy.session_policy(
            shell=plan.shell,
            pid=None if namespace else _ANY_PID,
            signals_scoped=abi >= landlock.SCOPES_SIGNALS,
            branching=namespace and not plan.shell,
            memory_counted=plan.memory_counted,
            files_shared=not namespace and not plan.users,
            lengths_kept=namespace or abi >= landlock.KEEPS_LENGTHS,
        ),
        syscall_numbers.MACHINE,
    )


def _rules(plan: TemplatePlan, visible: list[str], work: str, *, listed: Iterable[str] = ()) -> int:
    with (
        landlock.opened(listed) as folders,
        landlock.opened(visible) as read,
        landlock.opened([work]) as write,
        landlock.opened(mounts.devices(memory_counted=plan.memory_counted)) as devices,
    ):
        return landlock.ruleset(
            read=read, write=write, devices=devices, listed=folders, shell=plan.shell
        )


def _count_threads(processes: int) -> int:
    """Return how many threads this process has, Python's and others; 0 if it cannot be told."""
    try:
        if processes >= 0:
            folder = os.open("self/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=processes)
        else:
            folder = os.open("/proc/self/task", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return 0
    try:
        return len(os.listdir(folder))
    finally:
        os.close(folder)


def _moved_up(descriptor: int) -> int:
    if descriptor < 0:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FREE)
    os.close(descriptor)
    return moved


def _taking_descriptors(kept: dict[int, int]) -> list[Syscall]:
    """Keep what is for a request, empty streams for input and output, and nothing else.

    Output goes to files in memory: nobody has to read them while code writes.
    """
    null, output, errors = _FREE, _FREE + 1, _FREE + 2
    return [
        # Another stands in for what there is none of, so that the numbers below hold.
        *(
            call("dup3", source if source >= 0 else kept[_LIFE], target, os.O_CLOEXEC)
            for target, source in kept.items()
        ),
        call("close_range", _FREE, _ALL, 0),
        call("openat", _HERE, b"/dev/null", os.O_RDONLY, result=null),
        call("memfd_create", b"output", 0, result=output),
        call("memfd_create", b"output", 0, result=errors),
        *(call("dup3", source, to, 0) for to, source in enumerate((null, output, errors))),
        call("close_range", _FREE, _ALL, 0),
    ]


def _giving_up_rights(plan: TemplatePlan) -> list[Step]:
    namespace = plan.isolation == "namespace"
    steps = _for("work folder", [call("umask", 0o077)])
    if namespace:
        steps += _for("work folder", [call("mkdirat", _HERE, b"tmp", 0o700)])
    else:
        steps += _for("session", [call("setsid")])
    if plan.isolation != "none":
        steps += _for("privileges", [capabilities.NO_NEW_PRIVILEGES])
        if namespace and not plan.users:
            steps += _for("user namespace", namespaces.leaving_users(_PROCESSES, _FREE))
        steps += _for("capabilities", capabilities.dropping())
    return steps


def _dying_with_template() -> list[Step]:
    """Have the kernel end the session with the template, and fail if that is gone already."""
    ended = bytearray(struct.pack("<ihh", _LIFE, select.POLLHUP, 0))
    at_once = struct.pack("<qq", 0, 0)
    return _for(
        "death",
        [
            capabilities.DIE_WITH_PARENT,
            call("ppoll", ended, 1, at_once, 0, 0, result=0),
        ],
    )


def _for(wall: str, made: Iterable[Syscall]) -> list[Step]:
    return [(wall, one) for one in made]


def _perform(steps: list[Step]) -> None:
    for wall, one in steps:
        try:
            calls.perform([one])
        except OSError as error:
            raise WallError(wall, error) from None


def _finish(walls: Walls) -> None:
    """Put up the walls that name this very session: its own folder, and its process id."""
    plan = walls.plan
    wall = "landlock"
    try:
        own = _rules(plan, plan.visible, ".")
        landlock.restrict_self(own)
        os.close(own)
        wall = "seccomp"
        seccomp.install(walls.filter.replace(_named(_ANY_PID), _named(os.getpid())))
    except OSError as error:
        raise WallError(wall, error) from None


def _named(pid: int) -> bytes:
    return struct.pack("<I", pid)
