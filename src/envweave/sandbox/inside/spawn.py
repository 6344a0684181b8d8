"""Spawning a session: a fork of the template that sets up its walls before it reads anything.

The order matters. Mounting needs rights that the user namespace takes away; changing the user or
the namespace resets the parent-death signal; Landlock and the limits need system calls that the
filter refuses. So: socket, cgroup, descriptors, work folder, user, namespace, rights, parent-death
signal, limits, Landlock, and the filter last. Then it reports that it is ready.

All of it is a list of system calls, built before the fork. The compiled extension, where there is
one, makes them without running any Python in between: each page of the interpreter that a new
process touches costs a page fault.
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

from msgspec import structs

from envweave.sandbox.execution import Limits
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.messages import DESCRIPTOR, Ready, SpawnRequest
from envweave.sandbox.protocol.orders import TemplatePlan
from envweave.sandbox.walls import (
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
from envweave.sandbox.walls.kernel import Syscall, deferred

_ANY_PID = 0x7FFF_FFF1
"""Placeholder in the assembled filter for the process id of the session."""

_RULESET, _PROCESSES, _LIFE, _FREE = DESCRIPTOR + 1, DESCRIPTOR + 2, DESCRIPTOR + 3, DESCRIPTOR + 4
"""The descriptors that a session has open while it starts, and the first number above."""

_ALL = 0xFFFF_FFFF
_HERE = -100  # AT_FDCWD

_NO_CHILD_WAIT = 2  # SA_NOCLDWAIT
_DISCARD_CHILDREN = deferred(
    "rt_sigaction",
    int(signal.SIGCHLD),
    struct.pack("<4Q", 0, _NO_CHILD_WAIT, 0, 0),
    0,
    8,
)
"""Has the kernel reap children: no process waits for a branch, which as a zombie would count as one
of the session's processes."""

_STATUS_BYTES = 144
OUTPUT_STATUSES = (bytearray(_STATUS_BYTES), bytearray(_STATUS_BYTES))
"""What `fstat` returns for descriptors 1 and 2 of a session. Written in the session."""

_READY = encode(Ready())
_SET_MASK = 2  # SIG_SETMASK

Step = tuple[str, Syscall]
"""A system call, with the name of the wall that it is part of."""


class WallError(Exception):
    """A wall could not be set up.

    Attributes:
        wall: Its name.
        errno: The error of the kernel.
    """

    def __init__(self, wall: str, error: OSError) -> None:
        super().__init__(f"{wall}: {error.strerror or error}")
        self.wall = wall
        self.errno = error.errno or 0


class Native(Protocol):
    """The compiled extension, `envweave.sandbox._spawn`."""

    def serve(
        self,
        control: int,
        host: int,
        ended: int,
        flags: int,
        calls: list[Syscall],
        places: bytes,
        each: int,
        has_user: int,
        options: str,
        /,
    ) -> tuple[int, int] | tuple[bytes, int, int]:
        """Carry out compact orders, until there is something else to do. See `SpawnLoop`."""

    def perform_in_helper(self, calls: list[Syscall], /) -> tuple[int, int]:
        """Make calls in a process that shares this one's memory and descriptors.

        Returns:
            The index of the call that failed (-1 for none), and its errno.
        """

    def spawn(self, flags: int, calls: list[Syscall], alone: int, /) -> tuple[int, int, int, int]:
        """Fork as `kernel.clone` does, and make the calls in the child.

        Returns:
            What `kernel.clone` returns; then, in the child, the index of the call that failed (-1
            for none), and its errno.
        """


@dataclass(frozen=True, slots=True)
class Walls:
    """What is prepared once in the template, so that a spawn is fast.

    Attributes:
        filter: The assembled seccomp program, with `_ANY_PID` in place of the session's id.
        processes: The host's `/proc`, for maps of user ids; -1 without namespaces.
        first: The calls that every spawn begins with, once the session's socket is in place.
        last: The calls that every spawn ends with.
        native: The extension, where it is used.
        alone: Whether the template has only one thread.
        references: Keeps alive what the calls point to, and the template's end of a pipe.
        last_spawn: Keeps alive the calls of the last spawn.
    """

    plan: TemplatePlan
    limits: Limits
    filter: bytes
    processes: int
    first: list[Step]
    last: list[Step]
    native: Native | None
    alone: bool
    references: tuple[object, ...]
    last_spawn: list[object] = field(default_factory=list)

    @property
    def can_loop(self) -> bool:
        """Whether sessions can be spawned by a `SpawnLoop`."""
        return self.native is not None and self.alone and self.plan.isolation == "namespace"

    @property
    def clone_flags(self) -> int:
        """The namespaces of a session."""
        return namespaces.SESSION if self.plan.isolation == "namespace" else 0


class Forked(NamedTuple):
    """The two sides of a fork.

    Attributes:
        pid: The session's process id; 0 in the session.
        process: Its pidfd; -1 in the session.
        error: In the session, why its walls could not be set up. It must exit.
    """

    pid: int
    process: int
    error: WallError | None = None


def prepare(plan: TemplatePlan, processes: int, native: Native | None) -> Walls:
    """Prepare the walls of all sessions. Called once in the template, behind its own walls.

    Args:
        plan: The template's.
        processes: See `Walls`.
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
    descriptors = {_RULESET: _moved_up(ruleset), _PROCESSES: processes, _LIFE: _moved_up(life)}
    # So that no session's socket ever arrives at a number that a spawn uses.
    while os.open("/dev/null", os.O_RDONLY) < _FREE:
        pass
    counted_alone = namespace or plan.users > 0
    counted_with = 0 if counted_alone else rlimits.count_tasks(os.getuid())
    session_limits = rlimits.for_session(limits, counted_with=counted_with)
    last = [*_drop_rights(plan), *_die_with_template()]
    if namespace and not plan.shell:
        last += _for("branches", [_DISCARD_CHILDREN])
    last += _for("limits", rlimits.apply_calls(session_limits))
    if ruleset >= 0:
        last += _for("landlock", [landlock.restrict_call(_RULESET, abi)])
    last += _for("descriptors", [deferred("close_range", _RULESET, _LIFE, 0)])
    last += _for(
        "output", [deferred("fstat", at, one) for at, one in enumerate(OUTPUT_STATUSES, 1)]
    )
    # The template blocks what it waits for.
    last += _for("signals", [deferred("rt_sigprocmask", _SET_MASK, bytes(8), 0, 8)])
    if namespace:
        last += _for("seccomp", [seccomp.install_call(buffer)])
    if plan.isolation != "landlock":
        size = len(_READY)
        last += _for("socket", [deferred("write", DESCRIPTOR, _READY, size, result=size)])
    return Walls(
        plan,
        limits,
        filter=program,
        processes=processes,
        first=_for("descriptors", _descriptor_calls(descriptors)),
        last=last,
        native=native,
        alone=_count_threads(processes) == 1,
        references=(buffer, template_end),
    )


def restrict_template(plan: TemplatePlan) -> None:
    """Restrict the template, and with it all sessions, by Landlock to what they may read.

    These rules allow writing to all work folders. A session adds rules that allow only its own:
    an access needs both. So the long list of packages is not processed for each session.

    Raises:
        OSError: The kernel has no Landlock.
    """
    rules = _rules(plan, plan.shown, plan.work, listed=plan.listed)
    capabilities.no_new_privileges()
    landlock.restrict_self(rules)
    os.close(rules)


def spawn(walls: Walls, request: SpawnRequest, descriptor: int, cgroup_files: list[int]) -> Forked:
    """Fork a session and set up its walls. Returns twice: in the template, and in the session.

    The session reports that it is ready as soon as its walls are set up.

    Args:
        walls: What was prepared.
        request: The parameters of the session.
        descriptor: Its end of the socket.
        cgroup_files: What it writes to in order to join its cgroup.

    Raises:
        OSError: The kernel makes no more processes or namespaces. In the template only.
    """
    steps = _steps(walls, request, descriptor, cgroup_files)
    failed = -1
    if walls.native is not None:
        made = [one for _, one in steps]
        # Kept alive, or every session would begin by freeing them.
        walls.last_spawn[:] = [steps, made]
        pid, process, failed, number = walls.native.spawn(walls.clone_flags, made, walls.alone)
    else:
        walls.last_spawn[:] = [steps]
        pid, process = kernel.clone(walls.clone_flags, alone=walls.alone)
    if pid != 0:
        return Forked(pid, process)
    try:
        if walls.native is None:
            _perform(steps)
        elif failed >= 0:
            wall, one = steps[failed]
            raise WallError(wall, kernel.refusal(one, number))
        if walls.plan.isolation != "namespace":
            os.environ.update(HOME=request.work, TMPDIR=f"{request.work}/tmp")  # noqa: S108
        if walls.plan.isolation == "landlock":
            _finish(walls)
    except WallError as error:
        return Forked(0, -1, error)
    except BaseException:  # noqa: BLE001 - it must not continue as a second template
        os._exit(1)
    return Forked(0, -1)


def take_user(user: int) -> None:
    """Become another user, irrevocably."""
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _steps(
    walls: Walls, request: SpawnRequest, descriptor: int, cgroup_files: list[int]
) -> list[Step]:
    """Return every call of a spawn, in order."""
    plan = walls.plan
    namespace = plan.isolation == "namespace"
    # First, so that the session can report why a later step failed. No file of a cgroup is lost:
    # `prepare` makes sure that they arrive above `_FREE`.
    steps = _for("descriptors", [deferred("dup3", descriptor, DESCRIPTOR, os.O_CLOEXEC)])
    # By the session itself: adding another process to a cgroup waits for all forks under way.
    steps += _for("cgroup", [deferred("write", file, b"0", 1, result=1) for file in cgroup_files])
    steps += walls.first
    if namespace:
        owner = namespaces.USER if request.user is None else request.user
        options = mounts.work_options(walls.limits.disk_bytes, walls.limits.files, owner)
        steps += _for("work folder", mounts.mount_work_calls(options, shell=plan.shell))
    else:
        steps += _for("work folder", [deferred("chdir", os.fsencode(request.work))])
    if request.user is not None:
        user = (request.user,) * 3
        steps += _for("user", [deferred("setresgid", *user), deferred("setresuid", *user)])
        if namespace:
            # For the template, which mounts for its branches.
            steps += _for("user", [capabilities.DUMPABLE])
    return steps + walls.last


@dataclass(frozen=True, slots=True)
class LoopOutcome:
    """Why a loop returned in the template.

    Attributes:
        events: The process ids of new sessions and, with their `waitpid` statuses, of processes
            that ended, in order. The status of a new session is `None`.
        has_order: Whether an order waits to be read.
        errno: The error of an order that failed; 0 if none did.
    """

    events: list[tuple[int, int | None]]
    has_order: bool
    errno: int


class SpawnLoop:
    """Spawns sessions for compact orders, by the extension.

    Args:
        walls: What was prepared. Sessions must have namespaces, and the template one thread.
        request: What the parameters of all sessions equal, but for the user.
        cgroup_files: How many files a session writes to in order to join its cgroup.
    """

    def __init__(self, walls: Walls, request: SpawnRequest, cgroup_files: int) -> None:
        self._walls = walls
        self._each = 1 + cgroup_files
        self._has_user = request.user is not None
        # Numbers that stand for those of a session, which the extension puts in their places.
        descriptors = [_STAND_IN + at for at in range(self._each)]
        user = _STAND_IN - 1
        varying = structs.replace(request, user=user if self._has_user else None)
        self._steps = _steps(walls, varying, descriptors[0], descriptors[1:])
        self._calls = [one for _, one in self._steps]
        sources = {number: at for at, number in enumerate(descriptors)} | {user: _THE_USER}
        places = []
        for at, one in enumerate(self._calls):
            for position, argument in enumerate(one.arguments):
                if isinstance(argument, int) and argument in sources:
                    places.append((at, position, sources[argument]))
            if one.name == "mount":
                places.append((at, _OPTIONS_ARGUMENT, _THE_OPTIONS))
                options = one.arguments[_OPTIONS_ARGUMENT]
        assert isinstance(options, bytes)
        self._options = options.decode().replace(str(user), "%d")
        self._places = b"".join(struct.pack("<3i", *place) for place in places)

    def run(self, control: int, host: int, ended: int) -> LoopOutcome | Forked:
        """Serve until there is something else to do. Returns in the template and in each session.

        Args:
            control: The socket of orders.
            host: Readable when the host is gone.
            ended: A signalfd of SIGCHLD.
        """
        walls = self._walls
        assert walls.native is not None
        outcome = walls.native.serve(
            control,
            host,
            ended,
            walls.clone_flags,
            self._calls,
            self._places,
            self._each,
            self._has_user,
            self._options,
        )
        if len(outcome) == 2:
            failed, number = outcome
            if failed < 0:
                return _SPAWNED
            wall, one = self._steps[failed]
            return Forked(0, -1, WallError(wall, kernel.refusal(one, number)))
        events, has_order, error = outcome
        pairs = struct.iter_unpack("<2i", events)
        return LoopOutcome(
            [(pid, None if status < 0 else status) for pid, status in pairs],
            bool(has_order),
            error,
        )


_STAND_IN = 0x7E00_0000
_THE_USER, _THE_OPTIONS = -1, -2  # as in `_spawn.c`
_OPTIONS_ARGUMENT = 4  # of `mount`
_SPAWNED = Forked(0, -1)


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
    """Return how many threads this process has, Python's and others; 0 if that is unknown."""
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


def _descriptor_calls(kept: dict[int, int]) -> list[Syscall]:
    """Keep these descriptors, an empty input, two output streams, and nothing else.

    Output goes to files in memory, which need no reader while code writes.
    """
    null, output, errors = _FREE, _FREE + 1, _FREE + 2
    return [
        # A missing one is replaced by another, so that the numbers below are right.
        *(
            deferred("dup3", source if source >= 0 else kept[_LIFE], target, os.O_CLOEXEC)
            for target, source in kept.items()
        ),
        deferred("close_range", _FREE, _ALL, 0),
        deferred("openat", _HERE, b"/dev/null", os.O_RDONLY, result=null),
        deferred("memfd_create", b"output", 0, result=output),
        deferred("memfd_create", b"output", 0, result=errors),
        *(deferred("dup3", source, to, 0) for to, source in enumerate((null, output, errors))),
        deferred("close_range", _FREE, _ALL, 0),
    ]


def _drop_rights(plan: TemplatePlan) -> list[Step]:
    namespace = plan.isolation == "namespace"
    steps = _for("work folder", [deferred("umask", 0o077)])
    if namespace:
        steps += _for("work folder", [deferred("mkdirat", _HERE, b"tmp", 0o700)])
    else:
        steps += _for("session", [deferred("setsid")])
    if plan.isolation != "none":
        steps += _for("privileges", [capabilities.NO_NEW_PRIVILEGES])
        if namespace and not plan.users:
            steps += _for(
                "user namespace", namespaces.enter_user_namespace_calls(_PROCESSES, _FREE)
            )
        steps += _for("capabilities", capabilities.drop_calls())
    return steps


def _die_with_template() -> list[Step]:
    """Have the kernel kill the session with the template, and fail if that is already gone."""
    ended = bytearray(struct.pack("<ihh", _LIFE, select.POLLHUP, 0))
    at_once = struct.pack("<qq", 0, 0)
    return _for(
        "death",
        [
            capabilities.DIE_WITH_PARENT,
            deferred("ppoll", ended, 1, at_once, 0, 0, result=0),
        ],
    )


def _for(wall: str, made: Iterable[Syscall]) -> list[Step]:
    return [(wall, one) for one in made]


def _perform(steps: list[Step]) -> None:
    for wall, one in steps:
        try:
            kernel.perform([one])
        except OSError as error:
            raise WallError(wall, error) from None


def _finish(walls: Walls) -> None:
    """Set up the walls that depend on the session: its folder, and its process id."""
    plan = walls.plan
    wall = "landlock"
    try:
        own = _rules(plan, plan.visible, ".")
        landlock.restrict_self(own)
        os.close(own)
        wall = "seccomp"
        seccomp.install(walls.filter.replace(_packed_pid(_ANY_PID), _packed_pid(os.getpid())))
        wall = "socket"
        os.write(DESCRIPTOR, _READY)
    except OSError as error:
        raise WallError(wall, error) from None


def _packed_pid(pid: int) -> bytes:
    return struct.pack("<I", pid)
