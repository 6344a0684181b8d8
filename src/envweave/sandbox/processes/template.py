"""A template as the host holds it: started, told to spawn, watched, and started again."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import platform
import select
import socket
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
from envweave.sandbox.processes.fork_gate import ForkGate
from envweave.sandbox.protocol.messages import SpawnRequest
from envweave.sandbox.protocol.orders import (
    MESSAGE_BYTES,
    Ask,
    Copied,
    CopyFiles,
    Down,
    MapUsers,
    Order,
    ProcessEnded,
    Report,
    Spawn,
    Spawned,
    TemplatePlan,
    Up,
)
from envweave.sandbox.walls.mounts import WORK
from envweave.sandbox.walls.syscall_numbers import NUMBERS

MOST_AT_ONCE = 16
"""How many sessions one order makes."""

_START_S = 60.0
_ORDER_S = 30.0
_END_S = 10.0
_MOST_DESCRIPTORS = 64
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
_encode = msgspec.msgpack.Encoder().encode
_read_report = msgspec.msgpack.Decoder(Report).decode
ReportT = TypeVar("ReportT", bound=msgspec.Struct)


class WallSetupError(Exception):
    """A template could not put up a wall.

    Attributes:
        wall: Which.
        errno: What the kernel said; 0 if it was not the kernel.
        text: In words.
    """

    def __init__(self, wall: str, errno: int, text: str) -> None:
        super().__init__(text)
        self.wall = wall
        self.errno = errno
        self.text = text


class SpawnedProcess(msgspec.Struct, frozen=True):
    """A process that the template just made: the host's end of its socket, and what it is."""

    socket: Any
    pid: int
    process: int


class Template:
    """One template process. Orders may come from several threads, one at a time."""

    def __init__(self, plan: TemplatePlan) -> None:
        self.plan = plan
        self.gate: ForkGate | None = None
        self.missing: list[str] = []
        self.native = False
        self._lock = threading.Lock()  # one order and its report at a time
        self._is_torn = False  # an order was interrupted, and its report may still come
        self._closed = False
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
            # Not `-I`, which would overlook the hash seed; the environment is ours alone.
            [sys.executable, "-P", "-s", "-B", "-c", _BOOT, str(control), package],
            pass_fds=[control],
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in a terminal is the host's to handle
        )

    @classmethod
    def start(cls, plan: TemplatePlan) -> Template:
        """Start a template and wait until it stands.

        Raises:
            WallDown: It cannot put up its walls here.
            SandboxError: It ended without a word, or a module cannot be preloaded.
        """
        template = cls(plan)
        try:
            template._stand_up()
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
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        return not waiting.poll(0)

    def spawn(
        self, births: Sequence[SpawnRequest], cgroup_files: Sequence[Sequence[int]] = ()
    ) -> list[SpawnedProcess]:
        """Make sessions, at most `MOST_AT_ONCE`. They put up their walls on their own.

        Args:
            births: What they are to be.
            cgroup_files: For each, as many open files that put who writes to them into a cgroup.

        Raises:
            SessionLostError: The template is gone.
            WallDown: The kernel gives no more processes or namespaces.
        """
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(socket.socketpair() for _ in births)
            order = Spawn(list(births), len(cgroup_files[0]) if cgroup_files else 0)
            along = []
            for at, (_, theirs) in enumerate(pairs):
                along += [theirs.fileno(), *(cgroup_files[at] if cgroup_files else ())]
            spawned, processes = self._order(order, Spawned, along)
            if len(processes) != len(births):  # the kernel leaves out what there is no room for
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

    def ended(self, pid: int) -> int | None:
        """Say what `waitpid` told of a session; `None` while it lives or if nobody knows."""
        return self._order(Ask(pid), ProcessEnded)[0].status

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
        with contextlib.suppress(OSError):  # a forked copy of the host may hold it open
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

    def _stand_up(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(self.plan))
            self._process.stdin.close()
        except OSError:
            pass  # it is gone; the next line says so
        report, descriptors = self._receive(time.monotonic() + _START_S)
        if isinstance(report, MapUsers):
            self._map_users()
            self._control.send(b"m")
            report, descriptors = self._receive(time.monotonic() + _START_S)
        if isinstance(report, Down):
            raise WallSetupError(report.wall, report.errno, report.text)
        if not isinstance(report, Up):
            raise SandboxError(f"The sandbox's template said {type(report).__name__} at its start.")
        self.missing = report.missing
        self.native = report.native
        if descriptors:
            self.gate = ForkGate(descriptors[0])

    def _map_users(self) -> None:
        """Write the ids of the template's namespace, which only root may for more than one."""
        line = f"0 {self.plan.first_user} {self.plan.users}"
        for name in ("gid_map", "uid_map"):
            try:
                Path(f"/proc/{self.pid}/{name}").write_text(line)
            except OSError as error:
                raise WallSetupError("user namespace", error.errno or 0, str(error)) from None

    def _order(
        self, order: Order, answer: type[ReportT], descriptors: Sequence[int] = ()
    ) -> tuple[ReportT, list[int]]:
        along = []
        if descriptors:
            along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            if self._closed:
                raise SessionLostError("The sandbox's template process is gone.")
            if self._is_torn:
                self._catch_up()
            self._is_torn = True
            self._send(order, along)
            report, received = self._receive(time.monotonic() + _ORDER_S)
            self._is_torn = False
        if isinstance(report, Down):
            raise WallSetupError(report.wall, report.errno, report.text)
        if not isinstance(report, answer):
            self._process.kill()
            raise SessionLostError("The sandbox's template answered what nobody asked.")
        return report, received

    def _catch_up(self) -> None:
        """Drop the report of an order whose caller was interrupted, by Ctrl-C say.

        Else the next order would take it for its own, and from then on each the one before.
        """
        self._send(Spawn([]), [])
        while True:
            report, received = self._receive(time.monotonic() + _ORDER_S)
            for one in received:
                os.close(one)
            if isinstance(report, Spawned) and not report.pids:  # of nobody else's order
                return

    def _send(self, order: Order, along: list[Any]) -> None:
        try:
            self._control.sendmsg([_encode(order)], along)
        except OSError:
            raise self._gone() from None

    def _receive(self, deadline: float) -> tuple[Report, list[int]]:
        self._control.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data, ancillary, _, _ = self._control.recvmsg(
                MESSAGE_BYTES, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            if time.monotonic() < deadline:  # it is a signal handler's
                raise
            self._process.kill()
            raise self._gone() from None
        except OSError:
            raise self._gone() from None
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content[: len(content) - len(content) % 4])
        if not data:
            raise self._gone()
        return _read_report(data), list(descriptors)

    def _gone(self) -> SandboxError:
        self._errors.seek(0)
        said = self._errors.read(4096).decode(errors="replace").strip()
        last = f" It said: {said.splitlines()[-1]}" if said else ""
        return SessionLostError(f"The sandbox's template process is gone.{last}")


def refuse_elsewhere() -> None:
    """Refuse to work where there are no walls to put up.

    Raises:
        IsolationError: This is no Linux.
    """
    if sys.platform == "linux" and not NUMBERS:
        raise IsolationError(
            f"The sandbox's walls know x86_64 and aarch64, and this is {platform.machine()}. Use "
            "another machine, or a container that emulates one."
        )
    if sys.platform != "linux":
        from envweave.sandbox.doctor.advice import advise
        from envweave.sandbox.doctor.machine import machine_facts

        ways = " ".join(advise("platform", 0, machine_facts()))
        raise IsolationError(f"This machine cannot put up the sandbox's walls. {ways}")
