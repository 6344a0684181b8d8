"""A template process as the host sees it: starting it, its orders, and the fork gate."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from envweave.errors import IsolationError, SandboxError, SessionLostError
from envweave.sandbox.protocol.messages import SpawnRequest
from envweave.sandbox.protocol.orders import (
    MESSAGE_BYTES,
    Copied,
    CopyFiles,
    ExitStatus,
    GetExitStatus,
    MapUsers,
    Order,
    OrderFailed,
    Report,
    Spawn,
    Spawned,
    TemplatePlan,
    TemplateReady,
    decode_compact,
    encode_compact,
    is_compact,
)
from envweave.sandbox.walls.mounts import WORK
from envweave.sandbox.walls.syscall_numbers import NUMBERS

MAX_PER_ORDER = 16
"""How many sessions one order makes."""

_START_S = 60.0
_ORDER_S = 30.0
_END_S = 10.0
_MAX_DESCRIPTORS = 64
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from envweave.sandbox.inside.template import main; main()"
)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORK,
    "TMPDIR": f"{WORK}/tmp",  # noqa: S108 - the session's own
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same seed gives the same order of sets, in every session
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_NOTIFICATION_BYTES = 80
_CONTINUE = 1
_REFUSAL_S = 0.0005
_encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(Report).decode
ReportT = TypeVar("ReportT", bound=msgspec.Struct)


class WallSetupError(Exception):
    """A template could not set up a wall.

    Attributes:
        wall: The name of the wall.
        errno: The kernel's error; 0 if it was not the kernel.
        text: The reason.
    """

    def __init__(self, wall: str, errno: int, text: str) -> None:
        super().__init__(text)
        self.wall = wall
        self.errno = errno
        self.text = text


class SpawnedProcess(msgspec.Struct, frozen=True):
    """A process that the template just made: the host's end of its socket, its id and its pidfd."""

    socket: Any
    pid: int
    process: int


class ForkGate:
    """Answers the fork notifications of one template's sessions, on one thread.

    A seccomp filter in the template turns every fork of a session into a notification to the host.
    The host allows it once to a process that it has just ordered to branch, and refuses all others.
    It decides by the process id and the syscall number, which come from the kernel; it reads no
    memory of the session.
    """

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._waker, self._wake = os.pipe()
        self._lock = threading.Lock()  # protects `_allowed`
        self._allowed: dict[tuple[int, str], int] = {}
        self.refused = 0
        self._names = {
            NUMBERS[name]: "fork" if name != "unshare" else "unshare"
            for name in ("clone", "fork", "vfork", "unshare")
            if name in NUMBERS
        }
        self._thread = threading.Thread(target=self._answer, name="sandbox-gate", daemon=True)
        self._thread.start()

    def allow(self, pid: int, what: str) -> None:
        """Allow a process to `fork` or `unshare` once."""
        with self._lock:
            self._allowed[pid, what] = self._allowed.get((pid, what), 0) + 1

    def forget(self, pid: int) -> bool:
        """Revoke unused permissions of a process; return whether it used all of them."""
        with self._lock:
            left = [self._allowed.pop((pid, what), 0) for what in ("fork", "unshare")]
            return not any(left)

    def close(self) -> None:
        """Stop answering; the kernel refuses all later forks."""
        os.close(self._wake)
        self._thread.join()
        os.close(self._waker)
        os.close(self._listener)

    def _answer(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        while True:
            events = dict(poll.poll())
            if self._waker in events or events[self._listener] & select.POLLHUP:
                return
            notification = bytearray(_NOTIFICATION_BYTES)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, notification)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it died meanwhile
                    continue
                return
            number, pid = struct.unpack_from("<QI", notification)
            name = self._names.get(struct.unpack_from("<i", notification, 16)[0], "")
            if self._use_permission(pid, name):
                answer = struct.pack("<QqiI", number, 0, 0, _CONTINUE)
            else:
                self.refused += 1
                # Slows down a session that forks in a loop, rather than the host.
                time.sleep(_REFUSAL_S)
                answer = struct.pack("<QqiI", number, 0, -errno.EPERM, 0)
            try:
                fcntl.ioctl(self._listener, _SEND, answer)
            except OSError:  # it died meanwhile
                continue

    def _use_permission(self, pid: int, what: str) -> bool:
        with self._lock:
            left = self._allowed.get((pid, what), 0)
            if left <= 0:
                return False
            if left == 1:
                del self._allowed[pid, what]
            else:
                self._allowed[pid, what] = left - 1
            return True


class Template:
    """One template process. Thread-safe: orders are carried out one at a time."""

    def __init__(self, plan: TemplatePlan) -> None:
        self.plan = plan
        self.gate: ForkGate | None = None
        self.missing: list[str] = []
        self.native = False
        self._lock = threading.Lock()  # one order and its report at a time
        self._report_pending = False  # an order was interrupted; its report may still arrive
        self._closed = False
        self._reads_compact = False
        self._last_request: SpawnRequest | None = None  # without what differs between sessions
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_place)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(self._control)
            with theirs:
                self._errors = undo.enter_context(tempfile.TemporaryFile())
                self._process = self._exec(theirs.fileno())
            undo.enter_context(self._process)
            undo.callback(self._process.kill)
            self._descriptor = os.pidfd_open(self._process.pid)
            undo.pop_all()

    def _exec(self, control: int) -> subprocess.Popen[bytes]:
        package = str(Path(__file__).parents[3])
        return subprocess.Popen(  # noqa: S603 - this very interpreter
            # Not `-I`, which would ignore the hash seed; the environment is set below.
            [sys.executable, "-P", "-s", "-B", "-c", _BOOT, str(control), package],
            pass_fds=[control],
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # only the host handles Ctrl-C in a terminal
        )

    @classmethod
    def start(cls, plan: TemplatePlan) -> Template:
        """Start a template and wait until it is ready.

        Raises:
            WallSetupError: A wall cannot be set up here, or a module cannot be preloaded.
            SandboxError: It ended without a report.
        """
        template = cls(plan)
        try:
            template._await_ready()
        except BaseException:
            template.close()
            raise
        return template

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        if self._closed:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def spawn(
        self, requests: Sequence[SpawnRequest], cgroup_files: Sequence[Sequence[int]] = ()
    ) -> list[SpawnedProcess]:
        """Make sessions, at most `MAX_PER_ORDER`. They set up their walls themselves.

        Args:
            requests: The parameters of each.
            cgroup_files: For each, the open files that it writes to in order to join its cgroup.

        Raises:
            SessionLostError: The template is gone.
            WallSetupError: The kernel provides no more processes or namespaces.
        """
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(socket.socketpair() for _ in requests)
            order = self._spawn_order(requests, len(cgroup_files[0]) if cgroup_files else 0)
            attached = []
            for at, (_, theirs) in enumerate(pairs):
                attached += [theirs.fileno(), *(cgroup_files[at] if cgroup_files else ())]
            spawned, processes = self._order(order, Spawned, attached)
            if self._reads_compact and requests:
                self._last_request = _without_user(requests[-1])
            if len(processes) != len(requests):  # the kernel drops what does not fit
                for process in processes:
                    os.close(process)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except BaseException:
            for mine, _ in pairs:
                mine.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [
            SpawnedProcess(mine, pid, process)
            for (mine, _), pid, process in zip(pairs, spawned.pids, processes, strict=True)
        ]

    def _spawn_order(self, requests: Sequence[SpawnRequest], cgroup_files: int) -> bytes:
        """Return an order, in the compact form if the template knows the requests."""
        last = self._last_request
        if last is not None and all(_without_user(one) == last for one in requests):
            return encode_compact([one.user for one in requests], 1 + cgroup_files)
        return _encode(Spawn(list(requests), cgroup_files))

    def exit_status(self, pid: int) -> int | None:
        """Return the `waitpid` status of a session; `None` while it lives or if it is unknown."""
        return self._order(GetExitStatus(pid), ExitStatus)[0].status

    def copy_files(
        self, branch: SpawnedProcess, parent: int, user: int, inodes: list[int]
    ) -> dict[int, str]:
        """Give a branch its own work folder. See `CopyFiles`."""
        order = CopyFiles(branch.pid, user, inodes)
        return self._order(order, Copied, [branch.process, parent])[0].paths

    def close(self) -> None:
        """End the template, and its sessions with it. Harmless twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):  # a forked child of the host may hold it open
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()  # it ends its sessions, and itself
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.gate is not None:
            self.gate.close()
        self._errors.close()
        os.close(self._descriptor)
        self._remove_place()

    def _remove_place(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.plan.place)

    def _await_ready(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(self.plan))
            self._process.stdin.close()
        except OSError:
            pass  # it is gone; the next line reports that
        report, descriptors = self._receive(time.monotonic() + _START_S)
        if isinstance(report, MapUsers):
            self._map_users()
            self._control.send(b"m")
            report, descriptors = self._receive(time.monotonic() + _START_S)
        if isinstance(report, OrderFailed):
            raise WallSetupError(report.wall, report.errno, report.text)
        if not isinstance(report, TemplateReady):
            raise SandboxError(f"The sandbox's template sent {type(report).__name__} at its start.")
        self.missing = report.missing
        self.native = report.native
        self._reads_compact = report.compact
        if descriptors:
            self.gate = ForkGate(descriptors[0])

    def _map_users(self) -> None:
        """Write the id maps of the template's namespace. Only root may map more than one id."""
        line = f"0 {self.plan.first_user} {self.plan.users}"
        for name in ("gid_map", "uid_map"):
            try:
                Path(f"/proc/{self.pid}/{name}").write_text(line)
            except OSError as error:
                raise WallSetupError("user namespace", error.errno or 0, str(error)) from None

    def _order(
        self, order: Order | bytes, expected: type[ReportT], descriptors: Sequence[int] = ()
    ) -> tuple[ReportT, list[int]]:
        """Send an order, which may be encoded, and return the report."""
        attached = []
        if descriptors:
            attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            if self._closed:
                raise SessionLostError("The sandbox's template process is gone.")
            if self._report_pending:
                self._drop_pending_report()
            self._report_pending = True
            self._send(order, attached)
            report, received = self._receive(time.monotonic() + _ORDER_S)
            self._report_pending = False
        if isinstance(report, OrderFailed):
            raise WallSetupError(report.wall, report.errno, report.text)
        if not isinstance(report, expected):
            self._process.kill()
            raise SessionLostError("The sandbox's template sent an unexpected report.")
        return report, received

    def _drop_pending_report(self) -> None:
        """Drop the report of an order whose caller was interrupted, by Ctrl-C for example.

        Otherwise the next order would take it for its own, and so would every later one.
        """
        self._send(Spawn([]), [])
        while True:
            report, received = self._receive(time.monotonic() + _ORDER_S)
            for one in received:
                os.close(one)
            if isinstance(report, Spawned) and not report.pids:  # the reply to the order above
                return

    def _send(self, order: Order | bytes, attached: list[Any]) -> None:
        data = order if isinstance(order, bytes) else _encode(order)
        try:
            self._control.sendmsg([data], attached)
        except OSError:
            raise self._lost_error() from None

    def _receive(self, deadline: float) -> tuple[Report, list[int]]:
        self._control.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data, ancillary, _, _ = self._control.recvmsg(
                MESSAGE_BYTES, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            if time.monotonic() < deadline:  # raised by a signal handler
                raise
            self._process.kill()
            raise self._lost_error() from None
        except OSError:
            raise self._lost_error() from None
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content[: len(content) - len(content) % 4])
        if not data:
            raise self._lost_error()
        return _read_report(data), list(descriptors)

    def _lost_error(self) -> SandboxError:
        self._errors.seek(0)
        output = self._errors.read(4096).decode(errors="replace").strip()
        last = f" Its last output: {output.splitlines()[-1]}" if output else ""
        return SessionLostError(f"The sandbox's template process is gone.{last}")


def _read_report(data: bytes) -> Report:
    if is_compact(data):
        pids, _ = decode_compact(data)
        return Spawned(pids)  # type: ignore[arg-type] # a report has no `None`
    report: Report = _decode_report(data)
    return report


def _without_user(request: SpawnRequest) -> SpawnRequest:
    return msgspec.structs.replace(request, user=None)


def require_linux() -> None:
    """Refuse platforms that the sandbox does not support.

    Raises:
        IsolationError: This is not Linux on x86_64 or aarch64.
    """
    if sys.platform == "linux" and not NUMBERS:
        raise IsolationError(
            f"The sandbox supports x86_64 and aarch64, and this is {platform.machine()}. Use "
            "another machine, or a container that emulates one."
        )
    if sys.platform != "linux":
        from envweave.sandbox.doctor import advise, machine_facts

        advice = " ".join(advise("platform", 0, machine_facts()))
        raise IsolationError(f"The sandbox does not run on this machine. {advice}")
