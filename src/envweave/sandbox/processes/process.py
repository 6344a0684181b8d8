"""A session's process as the host sees it: interrupting, killing, branching, and its exit."""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from envweave.errors import BranchError, SandboxError, SessionLostError
from envweave.sandbox.processes import process_group
from envweave.sandbox.processes.process_group import ProcessGroup
from envweave.sandbox.processes.resources import SessionResources
from envweave.sandbox.processes.template import SpawnedProcess, Template, WallSetupError
from envweave.sandbox.processes.watcher import ProcessWatcher, Watched, WatcherCalls
from envweave.sandbox.protocol import encoding
from envweave.sandbox.protocol.framing import (
    SMALL_BYTES,
    decode_message,
    read_exactly,
    read_with_sender,
    send,
)
from envweave.sandbox.protocol.messages import (
    HEADER_BYTES,
    INTERRUPT,
    Begin,
    Branch,
    Called,
    FromSession,
    Ready,
    Replied,
    Run,
    RunFinished,
    SetupFailed,
    ToolAnswer,
    ToolSignature,
)
from envweave.sandbox.walls.mounts import WORK
from envweave.sandbox.walls.namespaces import USER


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a session's process is gone.

    Attributes:
        kind: `exit`, `signal`, `closed` (it lives, but closed its socket) and `unknown` are
            caused by the code; for `memory` the kernel or the host, and for `disk` the host
            enforced a limit; for `lost` something else ended it: the template, or the session
            that it was branched from.
        code: The exit status, or the number of the signal.
        why: A more precise reason, where one is known.
    """

    kind: Literal["exit", "signal", "closed", "unknown", "memory", "disk", "lost"]
    code: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return self.why
        if self.kind == "exit":
            return f"its process exited with status {self.code}"
        if self.kind == "signal":
            return f"its process died of {_signal_name(self.code)}"
        if self.kind == "closed":
            return "its code closed the connection to the host"
        if self.kind == "unknown":
            return "its process ended"
        if self.kind == "memory":
            return "it exceeded its memory limit"
        if self.kind == "disk":
            return "its work folder exceeded its size limit"
        return "its process is gone, and its code did not cause that"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class SessionHandle(Protocol):
    """The process of one session, and everything that lives inside its walls."""

    socket: socket.socket
    """The host's end. Blocking, unless the driver changes that."""

    work: str | None
    """The work folder as the session sees it; `None` for the default."""

    is_stopped: bool
    """Whether the host stopped it while no call was under way: call `wake` before the next."""

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Have the watcher check it while it lives; `in_use` is held by the call under way."""

    def wake(self) -> Literal["disk", "memory"] | None:
        """Resume it; or return the limit for which it was killed while no call was under way."""

    def interrupt(self) -> None:
        """Raise an exception in the running code. Harmless when nothing runs or lives."""

    def kill(self) -> None:
        """Kill the process and all its children. Harmless twice."""

    def exit_reason(self) -> ExitReason:
        """Return why the process is gone, after its socket closed. Kills it if it lives."""

    def excess(self) -> Literal["disk", "memory"] | None:
        """Return which limit that only the host can see is exceeded; `None` if none is."""

    def branch(
        self, seed: int | None, deadline: float, *, reseed: bool = True, strict: bool = False
    ) -> SessionHandle:
        """Return the handle of a live copy, whose `Ready` has been read. See `Session.branch`.

        Called when no run is under way; uses the socket itself.

        Raises:
            BranchError: This session cannot be copied, or died of it.
        """

    def release(self) -> None:
        """Kill it, and release every descriptor and folder. Harmless twice."""


_ATTEMPTS = 10
_PAUSE_S = 0.002


def kill_orphans(member: int, known: Collection[int], is_gone: Callable[[], bool]) -> int:
    """Kill every process in the PID namespace of `member` that is not `known`.

    It looks more than once: a fork that was allowed may not have happened yet.

    Args:
        member: A process id in the namespace.
        known: The process ids to spare.
        is_gone: Whether the member has ended, so that its id may have been reused.

    Returns:
        How many were killed.
    """
    try:
        namespace = os.open(f"/proc/{member}/ns/pid", os.O_RDONLY)
    except OSError:
        return 0
    try:
        group = os.fstat(namespace).st_ino  # not reused while this is open
        if is_gone() or group == _namespace(os.getpid()):
            return 0
        for _ in range(_ATTEMPTS):
            pids = map(int, filter(str.isdigit, os.listdir("/proc")))
            orphans = [one for one in pids if one not in known and _namespace(one) == group]
            if ended := sum(_end(one, group) for one in orphans):
                return ended
            time.sleep(_PAUSE_S)
        return 0
    finally:
        os.close(namespace)


def _end(pid: int, group: int) -> bool:
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            # Otherwise the PID was reused, or it is a zombie.
            if _namespace(pid) == group and not _is_gone(process):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _is_gone(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def _namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


def shares_memory(pid: int) -> bool:
    """Whether a process has mapped memory, or a file of its work folder, that a copy would share.

    It may be gone; then nothing is shared.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            _, modes, _, _, _, *path = line.split(maxsplit=5)
            if modes.endswith(b"s"):
                is_work = bool(path) and path[0].startswith(WORK.encode())
                if is_work or b"w" in modes:
                    return True
    return False


_EXIT_WAIT_MS = 200
_WARM_UP_CELL = "_ = 0\nprint(_)\n_"


class SessionProcess:
    """The `SessionHandle` of a session that a template spawned."""

    def __init__(
        self,
        template: Template,
        spawned: SpawnedProcess,
        resources: SessionResources,
        group: ProcessGroup,
        watcher: ProcessWatcher,
    ) -> None:
        self.socket: socket.socket = spawned.socket
        self.pid = spawned.pid
        self.work = None if resources.folder is None else str(resources.folder.path)
        self._template = template
        self._process = spawned.process
        self._resources = resources
        self._group = group
        self.is_stopped = False
        self._watcher = watcher
        self._watched: Watched | None = None
        self._excess: Literal["disk", "memory"] | None = None
        # Protects `_process` from a signal after its close, and `is_stopped`. Reentrant: a signal
        # handler that interrupts the session may run in the thread that holds it.
        self._lock = threading.RLock()
        self._released = False
        self._killed = False
        group.join(self)

    def await_ready(self, deadline: float) -> None:
        """Read the first message.

        Raises:
            WallSetupError: A wall could not be set up.
            SessionLostError: It is gone.
        """
        first = self._read(deadline)
        if isinstance(first, SetupFailed):
            if not self._template.alive:  # one of the walls is to die with the template
                raise SessionLostError("The sandbox's template process is gone.")
            raise WallSetupError(first.wall, first.errno, first.text)
        if isinstance(first, Replied) and first.failure is not None:
            raise SessionLostError(first.failure.message)
        if not isinstance(first, Ready):
            raise SessionLostError("A new session did not report that it is ready.")

    def warm_up(self, deadline: float) -> None:
        """Have it run a cell, so that the first run of its caller is fast. `begin` forgets it.

        Raises:
            SessionLostError: It is gone.
        """
        send(self.socket, encoding.encode(Run(0, _WARM_UP_CELL)), deadline)
        if not isinstance(self._read(deadline), RunFinished):
            raise SessionLostError("A new session sent an unexpected message.")

    def begin(self, seed: int | None, tools: Sequence[ToolSignature], deadline: float) -> None:
        """Send a ready session its seed and its tools.

        Raises:
            SessionLostError: It is gone, or does not read.
        """
        try:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self.socket.sendall(encoding.encode(Begin(seed, list(tools))))
            self.socket.settimeout(None)
        except OSError as error:
            raise SessionLostError(f"A new session is gone: {error}") from None

    def is_usable(self) -> bool:
        """Whether the process and its template live."""
        return self._template.alive and not self._is_gone(0)

    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self._is_gone(0)

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Have the watcher check it until it is released."""
        self._watched = Watched(self, calls, in_use)
        self._watcher.add(self._watched)

    def cpu_s(self) -> float | None:
        """Return the CPU time that it has used. See `Watchable`, as for the next two."""
        try:
            used_s = process_group.cpu_s(self.pid)
        except OSError:
            return None
        if self._template.plan.shell:
            for pid in self._programs():
                with contextlib.suppress(OSError):
                    used_s += process_group.cpu_s(pid)
        return used_s

    def check(self) -> bool:
        """Kill it if it exceeds a limit."""
        excess = self.excess()
        if excess is None or self._killed or self._is_gone(0):  # its PID may have been reused
            return False
        with self._lock:
            self._excess = excess
            self.is_stopped = True
        self.kill()
        return True

    def stop(self, in_use: threading.Lock) -> bool:
        """Stop it, unless a call is under way."""
        with self._lock:
            # A call takes `in_use` and then reads `is_stopped`; this does it in reverse order.
            self.is_stopped = True
            if in_use.locked():
                self.is_stopped = False
                return False
            self._signal_all(signal.SIGSTOP)
            # Before it stops, one of several processes may wake another.
            return process_group.are_stopped(self._programs())

    def wake(self) -> Literal["disk", "memory"] | None:
        """Resume it, and have it watched again."""
        with self._lock:
            if self._excess is None and self.is_stopped and not self._killed:
                self.is_stopped = False
                self._signal_all(signal.SIGCONT)
                if self._watched is not None:
                    self._watcher.add(self._watched)
        return self._excess

    def interrupt(self) -> None:
        """Interrupt the code. See `SessionHandle`, as for all that follow."""
        self._signal(INTERRUPT)

    def kill(self) -> None:
        """Kill it; only stop it while branches of it live."""
        if self._group.has_dependents(self):
            self._signal(signal.SIGSTOP)
        else:
            self._end()
        self._killed = True

    def exit_reason(self) -> ExitReason:
        """Return why it is gone."""
        if not self._template.alive:
            return ExitReason("lost")
        if self._excess is not None:
            return ExitReason(self._excess)
        if not self._is_gone(_EXIT_WAIT_MS):
            self.kill()
            return ExitReason("memory" if self._hit_memory_limit() else "closed")
        if self._hit_memory_limit():
            self._end()
            return ExitReason("memory")
        first = self._group.first
        try:
            status = self._template.exit_status(self.pid)
        except SandboxError:
            return ExitReason("lost")
        if status is None:  # a branch is not a child of the template
            if first is None or (first is not self and first.is_gone()):
                return ExitReason("lost")
            status = self._exit_status()
            if status is None:
                return ExitReason("unknown")
        self._end()
        if os.WIFSIGNALED(status):
            return ExitReason("signal", os.WTERMSIG(status))
        return ExitReason("exit", os.waitstatus_to_exitcode(status))

    def excess(self) -> Literal["disk", "memory"] | None:
        """Return which limit it exceeds."""
        if self._excess is not None:
            return self._excess
        if self._resources.folder is not None and self._resources.folder.is_over():
            return "disk"
        if self._resources.cgroup is not None:
            return "memory" if self._hit_memory_limit() else None
        pids = (self.pid, *self._programs())
        return (
            "memory"
            if process_group.exceed_memory(pids, self._template.plan.memory_bytes)
            else None
        )

    def branch(
        self, seed: int | None, deadline: float, *, reseed: bool = True, strict: bool = False
    ) -> SessionProcess:
        """Return a live copy."""
        gate = self._template.gate
        if gate is None:
            raise BranchError(
                "A session can only be branched with the isolation 'namespace' and the profile "
                f"'python'; this one has {self._template.plan.isolation!r} and "
                f"{'shell' if self._template.plan.shell else 'python'!r}."
            )
        if strict and shares_memory(self.pid):
            raise BranchError(
                "The session could not be copied: its code has mapped memory or files (mmap), "
                "which a copy would share with it"
            )
        try:
            mine, theirs = socket.socketpair()
        except OSError as error:
            raise BranchError(f"The session could not be copied: {error}") from error
        number = int.from_bytes(os.urandom(7), "little")
        message = Branch(number, seed, reseed, strict)
        copy = None
        with self._group.copying:
            try:
                with theirs:
                    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                    gate.allow(self.pid, "fork")
                    send(self.socket, encoding.encode(message), deadline)
                    self._replied(number, deadline)
                    rights = array.array("i", [theirs.fileno()])
                    self.socket.sendmsg([b"b"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                self._replied(number, deadline)
                copy = self._adopt(mine, number, deadline)
            except (OSError, SessionLostError, WallSetupError) as error:
                self.kill()  # its state is unknown
                raise BranchError(f"The session could not be copied: {error}") from error
            finally:
                has_forked = gate.forget(self.pid)
                if copy is None:
                    mine.close()
                    if has_forked:
                        first = self._group.first or self
                        kill_orphans(first.pid, self._group.pids(), first.is_gone)
            return copy

    def _adopt(self, connection: socket.socket, number: int, deadline: float) -> SessionProcess:
        """Make the handle of the process at the other end of a connection."""
        gate = self._template.gate
        assert gate is not None
        pid, data = read_with_sender(connection, deadline)
        if pid in {0, os.getpid(), self._template.pid, *self._group.pids()}:
            raise BranchError("The session did not make a copy of itself.")
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            raise BranchError(f"The copy is gone: {error}") from error
        if not self._shares_namespace(pid):
            os.close(process)
            raise BranchError("The copy is gone.")
        spawned = SpawnedProcess(connection, pid, process)
        try:
            resources = self._resources.for_branch()
        except BaseException:
            os.close(process)
            raise
        copy = SessionProcess(self._template, spawned, resources, self._group, self._watcher)
        try:
            if resources.cgroup is not None:
                resources.cgroup.add(pid)
            inodes = _inodes(decode_message(data), number)
            gate.allow(pid, "unshare")
            send(connection, b"g", deadline)
            copy._replied(number, deadline)
            user = USER if self._resources.user_inside is None else self._resources.user_inside
            paths = self._template.copy_files(spawned, self._process, user, inodes)
            moved = encoding.encode(
                ToolAnswer(0, ok=True, value=[list(one) for one in paths.items()])
            )
            send(connection, moved, deadline)
            copy.await_ready(deadline)
        except BaseException as error:
            copy.release()
            if isinstance(error, (SandboxError, WallSetupError, OSError)):
                raise BranchError(f"The session could not be copied: {error}") from error
            raise
        finally:
            gate.forget(pid)
        return copy

    def _shares_namespace(self, pid: int) -> bool:
        """Whether a process, whose pidfd is open, is in the PID namespace of this one.

        Otherwise the PID was reused.
        """
        try:
            names = [os.stat(f"/proc/{one}/ns/pid") for one in (pid, self.pid)]
        except OSError:
            return False
        return names[0].st_ino == names[1].st_ino

    def release(self) -> None:
        """Kill it and release everything; what branches share, with the last of them."""
        with self._lock:
            if self._released:
                return
            self._released = True
        if self._watched is not None:
            self._watcher.forget(self._watched)
        self.kill()
        self._group.leave(self)
        if self._group.first is not self:
            self.finish()

    def finish(self) -> None:
        """Kill the process and release its resources. Harmless twice."""
        self._end()
        with self._lock:
            self.socket.close()
            if self._process < 0:
                return
            os.close(self._process)
            self._process = -1
        self._resources.free()

    def _end(self) -> None:
        plan = self._template.plan
        is_reaped = self._template.alive and self._is_gone(0)
        if plan.isolation != "namespace" and not self._killed and not is_reaped:
            # No process can leave the group: the filter refuses it. Only at the first kill, and
            # not after the template reaped the session and killed its group: the PID may have
            # been reused by then.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._process, number)

    def _programs(self) -> list[int]:
        """Return the ids of the processes that the session started, where it may start any."""
        if not self._template.plan.shell:
            return []
        if self._resources.cgroup is None:
            return process_group.descendants(self.pid)
        return [pid for pid in self._resources.cgroup.pids() if pid != self.pid]

    def _signal_all(self, number: int) -> None:
        """Signal the session and the processes that it started."""
        self._signal(number)
        if not self._template.plan.shell:
            return
        process_group.signal_each(self._programs, number)
        if self._template.plan.isolation != "namespace" and not self._is_gone(0):
            # Orphans are no longer descendants, but cannot leave the group.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def _hit_memory_limit(self) -> bool:
        return self._resources.cgroup is not None and self._resources.cgroup.memory_hit()

    def _is_gone(self, timeout_ms: int) -> bool:
        with self._lock:
            if self._process < 0:
                return True
            poll = select.poll()
            poll.register(self._process, select.POLLIN)
            return bool(poll.poll(timeout_ms))

    def _exit_status(self) -> int | None:
        """Return the `waitpid` status of a process that is gone; `None` before Linux 6.15."""
        with self._lock:
            return process_group.exit_status(self._process) if self._process >= 0 else None

    def _replied(self, number: int, deadline: float) -> None:
        """Wait for the reply. Messages of the code's threads meanwhile are refused or dropped."""
        while True:
            message = self._read(deadline)
            if isinstance(message, Called):
                text = "A tool cannot be called while the session is copied."
                answer = encoding.encode(ToolAnswer(message.call, ok=False, value=text))
                send(self.socket, answer, deadline)
            elif isinstance(message, Replied) and message.id == number:
                break
        if message.failure is not None:
            raise BranchError(f"The session could not be copied: {message.failure.message}")

    def _read(self, deadline: float) -> FromSession:
        """Read one small message and nothing beyond it."""
        length = int.from_bytes(read_exactly(self.socket, HEADER_BYTES, deadline), "little")
        if length > SMALL_BYTES:
            raise SessionLostError("A session sent an invalid message.")
        data = read_exactly(self.socket, length, deadline)
        return decode_message(data)


def _inodes(message: FromSession, number: int) -> list[int]:
    if (
        not isinstance(message, Replied)
        or message.id != number
        or not isinstance(message.value, list)
    ):
        raise BranchError("The copy sent an unexpected message.")
    # `True` is an int here but not to the template, which exits at a message it cannot decode.
    inodes = [one for one in message.value[:1024] if type(one) is int]
    return [one for one in inodes if 0 <= one < 1 << 63]
