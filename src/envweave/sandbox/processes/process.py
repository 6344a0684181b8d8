"""A session's process: how it is interrupted, ended, copied, and found to be gone."""

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
from envweave.sandbox.protocol import plain_values
from envweave.sandbox.protocol.framing import (
    SMALL_BYTES,
    decoded,
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
    SetupFailed,
    ToolAnswer,
    ToolSignature,
)
from envweave.sandbox.walls.namespaces import USER


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a session's process is gone.

    Attributes:
        kind: `exit`, `signal`, `closed` (it lives, but closed its end) and `unknown` are the
            code's own doing; `memory` is the kernel's or the host's, and `disk` the host's, for
            the session's limit; `lost` is not the code's: the template, or the session it was
            branched from.
        code: The exit status, or the number of the signal.
        why: More than the kind says, where more is known.
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
            return "its code closed the line to the host"
        if self.kind == "unknown":
            return "its process ended"
        if self.kind == "memory":
            return "it used more memory than it may"
        if self.kind == "disk":
            return "it wrote more to its work folder than it may"
        return "its process is gone, and not by its own doing"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class SessionHandle(Protocol):
    """The process of one session, and everything that lives inside its walls."""

    socket: socket.socket
    """The host's end. Blocking; whoever drives it may set it otherwise."""

    work: str | None
    """The work folder as the session sees it, where it is not the one that all have."""

    is_stopped: bool
    """Whether the host stopped it while no call was under way: `wake` comes before the next."""

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Watch over it while it lives; `in_use` is held by the call under way."""

    def wake(self) -> Literal["disk", "memory"] | None:
        """Let it go on; or return the limit for which it was ended while no call was under way."""

    def interrupt(self) -> None:
        """Interrupt the code that runs, softly. Harmless when nothing runs or lives."""

    def kill(self) -> None:
        """End the process and all its children at once. Harmless twice."""

    def death(self) -> ExitReason:
        """Say why the process is gone, after its socket closed. Ends it if it lives."""

    def excess(self) -> Literal["disk", "memory"] | None:
        """Say which limit that nobody but the host watches is passed; `None` if none is."""

    def branch(self, seed: int | None, deadline: float) -> SessionHandle:
        """Return the body of a live copy, whose `Ready` has been read.

        Called when no run is under way; speaks on the socket itself.

        Raises:
            BranchError: This session cannot be copied, or died of it.
        """

    def release(self) -> None:
        """Kill, and give back every descriptor and folder. Harmless twice."""


_LOOKS = 10
_PAUSE_S = 0.002


def end_strays(member: int, known: Collection[int], is_gone: Callable[[], bool]) -> int:
    """Kill every process that has the PID namespace of `member` and is not `known`.

    It looks more than once: a fork that was let through may not have happened yet.

    Args:
        member: Whose namespace it is.
        known: The process ids of those that are to live.
        is_gone: Says whether the member has ended, and its number may be another's.

    Returns:
        How many were found.
    """
    try:
        namespace = os.open(f"/proc/{member}/ns/pid", os.O_RDONLY)
    except OSError:
        return 0
    try:
        family = os.fstat(namespace).st_ino  # nobody else's as long as this is open
        if is_gone() or family == _namespace(os.getpid()):
            return 0
        for _ in range(_LOOKS):
            pids = map(int, filter(str.isdigit, os.listdir("/proc")))
            strays = [one for one in pids if one not in known and _namespace(one) == family]
            if ended := sum(_end(one, family) for one in strays):
                return ended
            time.sleep(_PAUSE_S)
        return 0
    finally:
        os.close(namespace)


def _end(pid: int, family: int) -> bool:
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            # Else the number is another's by now, or nobody buried it.
            if _namespace(pid) == family and not _is_gone(process):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _is_gone(process: int) -> bool:
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(0))


def _namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


_LAST_BREATH_MS = 200


class SessionProcess:
    """The `SessionHandle` of a session that a template spawned."""

    def __init__(
        self,
        template: Template,
        born: SpawnedProcess,
        held: SessionResources,
        family: ProcessGroup,
        watcher: ProcessWatcher,
    ) -> None:
        self.socket: socket.socket = born.socket
        self.pid = born.pid
        self.work = None if held.folder is None else str(held.folder.path)
        self._template = template
        self._process = born.process
        self._held = held
        self._family = family
        self.is_stopped = False
        self._watcher = watcher
        self._watched: Watched | None = None
        self._excess: Literal["disk", "memory"] | None = None
        # Protects `_process` from a signal after its close, and `is_stopped`. A signal handler that
        # interrupts the session may come in while this thread holds it.
        self._lock = threading.RLock()
        self._released = False
        self._killed = False
        family.join(self)

    def await_ready(self, deadline: float) -> None:
        """Read the first message.

        Raises:
            WallDown: A wall does not stand.
            SessionLostError: It is gone.
        """
        first = self._read(deadline)
        if isinstance(first, SetupFailed):
            if not self._template.alive:  # one of the walls is to die with it
                raise SessionLostError("The sandbox's template process is gone.")
            raise WallSetupError(first.wall, first.errno, first.text)
        if isinstance(first, Replied) and first.failure is not None:
            raise SessionLostError(first.failure.message)
        if not isinstance(first, Ready):
            raise SessionLostError("A new session did not say that it is ready.")

    def begin(self, seed: int | None, tools: Sequence[ToolSignature], deadline: float) -> None:
        """Tell it, once it is ready, whose it is.

        Raises:
            SessionLostError: It is gone, or does not read.
        """
        try:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self.socket.sendall(plain_values.encode(Begin(seed, list(tools))))
            self.socket.settimeout(None)
        except OSError as error:
            raise SessionLostError(f"A new session is gone: {error}") from None

    def stands(self) -> bool:
        """Say whether the process and its template live."""
        return self._template.alive and not self._is_gone(0)

    def is_gone(self) -> bool:
        """Say whether the process has ended."""
        return self._is_gone(0)

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Have it watched until it is released."""
        self._watched = Watched(self, calls, in_use)
        self._watcher.add(self._watched)

    def cpu_s(self) -> float | None:
        """Return the processor time that it has used. See `Watchable`, as for the next two."""
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
        """End it if it is beyond a limit."""
        excess = self.excess()
        if excess is None or self._killed or self._is_gone(0):  # its number may be another's
            return False
        with self._lock:
            self._excess = excess
            self.is_stopped = True
        self.kill()
        return True

    def stop(self, in_use: threading.Lock) -> bool:
        """Stop it, unless a call is under way."""
        with self._lock:
            # A call takes `in_use` and then looks at `is_stopped`; this comes the other way.
            self.is_stopped = True
            if in_use.locked():
                self.is_stopped = False
                return False
            self._signal_all(signal.SIGSTOP)
            # What one of several processes does before it stops may wake another.
            return process_group.are_stopped(self._programs())

    def wake(self) -> Literal["disk", "memory"] | None:
        """Let it go on, and have it watched again."""
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
        """End it, or stop it for good while branches of it live."""
        if self._family.must_wait(self):
            self._signal(signal.SIGSTOP)
        else:
            self._end()
        self._killed = True

    def death(self) -> ExitReason:
        """Say why it is gone."""
        if not self._template.alive:
            return ExitReason("lost")
        if self._excess is not None:
            return ExitReason(self._excess)
        if not self._is_gone(_LAST_BREATH_MS):
            self.kill()
            return ExitReason("memory" if self._used_its_memory() else "closed")
        if self._used_its_memory():
            self._end()
            return ExitReason("memory")
        first = self._family.first
        try:
            status = self._template.ended(self.pid)
        except SandboxError:
            return ExitReason("lost")
        if status is None:  # a branch is no child of the template's, which sees no end of it
            taken_along = first is None or (first is not self and first.is_gone())
            return ExitReason("lost" if taken_along else "unknown")
        self._end()
        if os.WIFSIGNALED(status):
            return ExitReason("signal", os.WTERMSIG(status))
        return ExitReason("exit", os.waitstatus_to_exitcode(status))

    def excess(self) -> Literal["disk", "memory"] | None:
        """Say which limit it is beyond."""
        if self._excess is not None:
            return self._excess
        if self._held.folder is not None and self._held.folder.is_over():
            return "disk"
        if self._held.cgroup is not None:
            return "memory" if self._used_its_memory() else None
        pids = (self.pid, *self._programs())
        return "memory" if process_group.hold_more(pids, self._template.plan.memory_bytes) else None

    def branch(self, seed: int | None, deadline: float) -> SessionProcess:
        """Copy it, file by file and page by page."""
        gate = self._template.gate
        if gate is None:
            raise BranchError(
                "A session can only be branched with the isolation 'namespace' and the profile "
                f"'python'; this one has {self._template.plan.isolation!r} and "
                f"{'shell' if self._template.plan.shell else 'python'!r}."
            )
        try:
            mine, theirs = socket.socketpair()
        except OSError as error:
            raise BranchError(f"The session could not be copied: {error}") from error
        number = int.from_bytes(os.urandom(7), "little")
        copy = None
        with self._family.copying:
            try:
                with theirs:
                    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                    gate.allow(self.pid, "fork")
                    send(self.socket, plain_values.encode(Branch(number, seed)), deadline)
                    self._replied(number, deadline)
                    rights = array.array("i", [theirs.fileno()])
                    self.socket.sendmsg([b"b"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                self._replied(number, deadline)
                copy = self._adopt(mine, number, deadline)
            except (OSError, SessionLostError, WallSetupError) as error:
                self.kill()  # nobody knows how far it came
                raise BranchError(f"The session could not be copied: {error}") from error
            finally:
                has_forked = gate.forget(self.pid)
                if copy is None:
                    mine.close()
                    if has_forked:
                        first = self._family.first or self
                        end_strays(first.pid, self._family.pids(), first.is_gone)
            return copy

    def _adopt(self, line: socket.socket, number: int, deadline: float) -> SessionProcess:
        """Make a body of the process that speaks at the other end of a line."""
        gate = self._template.gate
        assert gate is not None
        pid, data = read_with_sender(line, deadline)
        if pid in {0, os.getpid(), self._template.pid, *self._family.pids()}:
            raise BranchError("The session did not make a copy of itself.")
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            raise BranchError(f"The copy is gone: {error}") from error
        if not self._is_of_family(pid):
            os.close(process)
            raise BranchError("The copy is gone.")
        born = SpawnedProcess(line, pid, process)
        try:
            held = self._held.for_branch()
        except BaseException:
            os.close(process)
            raise
        copy = SessionProcess(self._template, born, held, self._family, self._watcher)
        try:
            if held.cgroup is not None:
                held.cgroup.add(pid)
            inodes = _inodes(decoded(data), number)
            gate.allow(pid, "unshare")
            send(line, b"g", deadline)
            copy._replied(number, deadline)
            user = USER if self._held.inside is None else self._held.inside
            paths = self._template.copy_files(born, self._process, user, inodes)
            moved = plain_values.encode(
                ToolAnswer(0, ok=True, value=[list(one) for one in paths.items()])
            )
            send(line, moved, deadline)
            copy.await_ready(deadline)
        except BaseException as error:
            copy.release()
            if isinstance(error, (SandboxError, WallSetupError, OSError)):
                raise BranchError(f"The session could not be copied: {error}") from error
            raise
        finally:
            gate.forget(pid)
        return copy

    def _is_of_family(self, pid: int) -> bool:
        """Say whether a process, whose descriptor is held, has the process ids of this one.

        Else the number is another's by now.
        """
        try:
            names = [os.stat(f"/proc/{one}/ns/pid") for one in (pid, self.pid)]
        except OSError:
            return False
        return names[0].st_ino == names[1].st_ino

    def release(self) -> None:
        """Kill it and give everything back, what is shared with branches after the last."""
        with self._lock:
            if self._released:
                return
            self._released = True
        if self._watched is not None:
            self._watcher.forget(self._watched)
        self.kill()
        self._family.leave(self)
        if self._family.first is not self:
            self.finish()

    def finish(self) -> None:
        """End the process and give back what it has. Harmless twice."""
        self._end()
        with self._lock:
            self.socket.close()
            if self._process < 0:
                return
            os.close(self._process)
            self._process = -1
        self._held.free()

    def _end(self) -> None:
        plan = self._template.plan
        is_buried = self._template.alive and self._is_gone(0)
        if plan.isolation != "namespace" and not self._killed and not is_buried:
            # Nobody can leave the group: the filter refuses it. Never later than at the first
            # kill, nor after the template buried the session and ended its group: the number may
            # be another's by then.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._process, number)

    def _programs(self) -> list[int]:
        """Return the ids of the processes that the session started, if it may start any."""
        if not self._template.plan.shell:
            return []
        if self._held.cgroup is None:
            return process_group.descendants(self.pid)
        return [pid for pid in self._held.cgroup.pids() if pid != self.pid]

    def _signal_all(self, number: int) -> None:
        """Signal the session and the processes that it started."""
        self._signal(number)
        if not self._template.plan.shell:
            return
        process_group.signal_each(self._programs, number)
        if self._template.plan.isolation != "namespace" and not self._is_gone(0):
            # Orphans are no descendants any more, and cannot leave the group.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def _used_its_memory(self) -> bool:
        return self._held.cgroup is not None and self._held.cgroup.memory_hit()

    def _is_gone(self, patience_ms: int) -> bool:
        with self._lock:
            if self._process < 0:
                return True
            waiting = select.poll()
            waiting.register(self._process, select.POLLIN)
            return bool(waiting.poll(patience_ms))

    def _replied(self, number: int, deadline: float) -> None:
        """Wait for the answer. What a thread of the code says meanwhile is refused or dropped."""
        while True:
            message = self._read(deadline)
            if isinstance(message, Called):
                told = "A tool cannot be called while the session is copied."
                answer = plain_values.encode(ToolAnswer(message.call, ok=False, value=told))
                send(self.socket, answer, deadline)
            elif isinstance(message, Replied) and message.id == number:
                break
        if message.failure is not None:
            raise BranchError(f"The session could not be copied: {message.failure.message}")

    def _read(self, deadline: float) -> FromSession:
        """Read one small message and nothing beyond it."""
        length = int.from_bytes(read_exactly(self.socket, HEADER_BYTES, deadline), "little")
        if length > SMALL_BYTES:
            raise SessionLostError("A session spoke out of turn.")
        data = read_exactly(self.socket, length, deadline)
        return decoded(data)


def _inodes(hello: FromSession, number: int) -> list[int]:
    if not isinstance(hello, Replied) or hello.id != number or not isinstance(hello.value, list):
        raise BranchError("The copy answered what nobody asked.")
    # `True` would be an int here and none to the template, which ends at what it cannot read.
    inodes = [one for one in hello.value[:1024] if type(one) is int]
    return [one for one in inodes if 0 <= one < 1 << 63]
