"""The template: a fresh interpreter that every session is a fork of.

It is started by exec with an empty environment, never forked from the host, whose memory holds
answers and keys. It imports what sessions need, walls itself in, and then only forks and reports.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` wraps it in enums, which take memory
import array
import contextlib
import errno
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from typing import NoReturn

import msgspec

from envweave.sandbox.inside import spawn
from envweave.sandbox.inside.branch import BranchServer, copy_and_exit
from envweave.sandbox.inside.listed_folders import use_listings
from envweave.sandbox.inside.runner import SessionRunner, rehearse
from envweave.sandbox.protocol.messages import DESCRIPTOR, Ready, SetupFailed, SpawnRequest
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
)
from envweave.sandbox.walls import (
    capabilities,
    kernel,
    landlock,
    mounts,
    namespaces,
    policy,
    seccomp,
    syscall_numbers,
)

_encode = msgspec.msgpack.Encoder().encode
_read_order = msgspec.msgpack.Decoder(Order).decode
_KEPT_STATUSES = 4096
_DESCRIPTORS = 64


def main() -> NoReturn:
    """Read the plan, stand up, and serve until the host is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=TemplatePlan)
    TemplateServer(control, plan).run()


class TemplateServer:
    """One template, in its own process."""

    def __init__(self, control: socket.socket, plan: TemplatePlan) -> None:
        self._control = control
        self._plan = plan
        self._living: set[int] = set()
        self._ended: dict[int, int] = {}
        self._tells = -1
        self._runner: SessionRunner | None = None
        self._kind: tuple[int, int] | None = None
        self._importing = ""

    def run(self) -> NoReturn:
        """Stand up and serve. Every failure is reported, and ends the process."""
        try:
            walls, gate, missing = self._stand_up()
        except spawn.WallError as error:
            self._report(OrderFailed(error.wall, error.errno, str(error)))
            os._exit(1)
        except BaseException as error:  # noqa: BLE001 - a module that cannot be preloaded
            text = f"{self._importing}: {type(error).__name__}: {error}"
            self._report(OrderFailed("preload", 0, text))
            os._exit(1)
        native = walls.native is not None
        self._report(TemplateReady(missing, native), [gate] if gate >= 0 else [])
        if gate >= 0:
            os.close(gate)
        self._serve(walls)

    def _stand_up(self) -> tuple[spawn.Walls, int, list[str]]:
        plan = self._plan
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        host = os.pidfd_open(plan.host)
        processes = -1
        if plan.isolation == "namespace":
            processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        if plan.cpu is not None:
            os.sched_setaffinity(0, {plan.cpu})
        # These are envweave's own, whose files sessions do not see.
        native = _native() if plan.native else None
        own = [name for name in plan.preload if name.split(".")[0] == "envweave"]
        for self._importing in own:
            importlib.import_module(self._importing)
        if plan.isolation == "namespace":
            self._enter()
        self._set_path()
        for self._importing in (
            "ast",
            "asyncio",
            "linecache",
            "random",
            "traceback",
            *plan.preload,
        ):
            importlib.import_module(self._importing)
        sys.argv[:] = [""]
        walls = spawn.prepare(plan, processes, native)
        if plan.isolation == "landlock":
            with _wall("landlock"):
                spawn.restrict_template(plan)
        gate = -1
        if plan.isolation == "namespace" and not plan.shell:
            with _wall("seccomp gate"):
                capabilities.no_new_privileges()
                gate = seccomp.install(
                    seccomp.assemble(policy.gate_policy(), syscall_numbers.MACHINE),
                    seccomp.NEW_LISTENER,
                )
        missing = []
        if plan.isolation != "none":
            missing = landlock.missing(landlock.abi())
        self._host = host
        return walls, gate, missing

    def _set_path(self) -> None:
        """Have modules found where sessions may look, and nowhere else."""
        if self._plan.isolation == "none":
            sys.path.extend(path for path in self._plan.path if path not in sys.path)
            return
        sys.path[:] = self._plan.path
        # What packages in editable mode put there knows paths that sessions must not.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
        if self._plan.listings:
            use_listings(self._plan.listings)
        sys.path_importer_cache.clear()

    def _enter(self) -> None:
        """Enter the namespaces and the read-only root.

        Root builds the root folder while it may still read what only root may: an interpreter in
        a private folder is shown too. Everybody else first becomes root of a namespace.
        """
        plan = self._plan
        if plan.users:
            with _wall("namespaces"):
                namespaces.enter_as_root()
            with _wall("root folder"):
                self._build_root()
            with _wall("user"):
                os.setgroups([])
                spawn.take_user(plan.first_user)
                # Else nobody but the host's root could enter the mounts of a branch.
                capabilities.dumpable()
            with _wall("user namespace"):
                kernel.unshare(kernel.NEW_USERS)
                self._report(MapUsers())
                if self._control.recv(1) != b"m":
                    os._exit(1)
        else:
            with _wall("namespaces"):
                namespaces.enter((os.getuid(), os.getgid()))
            with _wall("root folder"):
                self._build_root()

    def _build_root(self) -> None:
        plan = self._plan
        mounts.build(
            plan.place,
            plan.visible,
            hidden=plan.hidden,
            shown=plan.shown,
            shell=plan.shell,
            memory_counted=plan.memory_counted,
        )

    def _serve(self, walls: spawn.Walls) -> NoReturn:
        gc.collect()
        gc.freeze()
        gc.disable()
        ended, self._tells = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listen()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        waiting.register(self._host, select.POLLIN)
        waiting.register(ended, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == self._host:
                    self._end()
                if descriptor == ended:
                    os.read(ended, 4096)
                    self._reap()
                    continue
                order, descriptors = self._receive()
                self._carry_out(order, descriptors, walls)
                for one in descriptors:
                    os.close(one)

    def _carry_out(self, order: Order, descriptors: list[int], walls: spawn.Walls) -> None:
        if isinstance(order, Spawn):
            # Done here once, or each session had to forget the handler by itself.
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            self._spawn(order, descriptors, walls)
            self._listen()
            self._reap()
        elif isinstance(order, GetExitStatus):
            self._reap()
            self._report(ExitStatus(self._ended.pop(order.pid, None)))
        else:
            self._copy_files(order, descriptors, walls)

    def _listen(self) -> None:
        """Be woken by the end of a session."""
        _signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, _pass)

    def _spawn(self, order: Spawn, descriptors: list[int], walls: spawn.Walls) -> None:
        each = 1 + order.cgroup_files
        if len(descriptors) != len(order.requests) * each:
            # The kernel drops what there is no room for.
            text = "The template has no descriptors left: raise the limit of open files (ulimit -n)"
            self._report(OrderFailed("descriptors", errno.EMFILE, text))
            return
        pids: list[int] = []
        processes: list[int] = []
        for at, request in enumerate(order.requests):
            descriptor, *cgroup_files = descriptors[at * each : (at + 1) * each]
            runner = self._runner_for(request)
            try:
                pid, process, fault = spawn.spawn(walls, request, descriptor, cgroup_files)
            except OSError as error:
                for one in processes:  # nobody will hear of these
                    _signal.pidfd_send_signal(one, _signal.SIGKILL)
                    os.close(one)
                self._report(OrderFailed("namespaces", error.errno or 0, str(error)))
                return
            if pid == 0:
                _live(runner, request, fault)
            self._ended.pop(pid, None)  # an earlier process of that number
            self._living.add(pid)
            pids.append(pid)
            processes.append(process)
        self._report(Spawned(pids), processes)
        for process in processes:
            os.close(process)

    def _runner_for(self, request: SpawnRequest) -> SessionRunner:
        """Return a runner for a session to start: made here, once for all that are alike."""
        kind = (request.output_bytes, request.message_bytes)
        if self._runner is None or self._kind != kind:
            self._runner = SessionRunner(request)
            self._runner.on_branch = BranchServer(self._runner)
            self._kind = kind
            rehearse(self._runner)
            gc.freeze()
        return self._runner

    def _copy_files(self, order: CopyFiles, descriptors: list[int], walls: spawn.Walls) -> None:
        """Copy in a process of its own: this one must not leave its mounts."""
        told, telling = os.pipe()
        # In a new PID namespace, because the gate would stop a fork into this one.
        pid, descriptor = kernel.clone(kernel.NEW_PIDS, alone=walls.alone)
        if pid == 0:
            branch, parent = descriptors
            copy_and_exit(order, branch, parent, walls, telling)
        os.close(telling)
        os.close(descriptor)
        with open(told, "rb") as reading:
            data = reading.read(MESSAGE_BYTES)
        try:
            report: Report = msgspec.msgpack.decode(data, type=Copied | OrderFailed)
        except msgspec.DecodeError:
            report = OrderFailed("branch", 0, "The files could not be copied.")
        self._report(report)

    def _receive(self) -> tuple[Order, list[int]]:
        data, ancillary, _, _ = self._control.recvmsg(
            MESSAGE_BYTES, socket.CMSG_SPACE(4 * _DESCRIPTORS)
        )
        if not data:
            self._end()
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content[: len(content) - len(content) % 4])
        return _read_order(data), list(descriptors)

    def _report(self, report: Report, descriptors: list[int] | None = None) -> None:
        along = []
        if descriptors:
            along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._control.sendmsg([_encode(report)], along)
        except OSError:
            os._exit(0)

    def _end(self) -> NoReturn:
        """End the sessions, wait until they are gone, and go."""
        for pid in self._living:
            self._end_group(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        os._exit(0)

    def _end_group(self, pid: int) -> None:
        """End the programs that a session started, where the kernel does not do it.

        Only while the session is there, living or not yet waited for: later its number may be
        another's.
        """
        if self._plan.isolation != "namespace":
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                self._end_group(found.si_pid)
                pid, status = os.waitpid(found.si_pid, 0)
                self._living.discard(pid)
                self._ended[pid] = status
                if len(self._ended) > _KEPT_STATUSES:
                    self._ended.pop(next(iter(self._ended)))


def _pass(*_: object) -> None:
    """Handle a signal that is only to wake."""


def _native() -> spawn.Native | None:
    try:
        from envweave.sandbox import _spawn
    except ImportError:  # built without a compiler
        return None
    return _spawn


@contextlib.contextmanager
def _wall(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise spawn.WallError(name, error) from None


def _live(runner: SessionRunner, request: SpawnRequest, fault: spawn.WallError | None) -> NoReturn:
    """Be a session, from the first instruction behind its walls to the end.

    Args:
        runner: Made for such a request.
        request: What it is to be.
        fault: Why it cannot be.
    """
    try:
        if fault is not None:
            _say(SetupFailed(fault.wall, fault.errno, str(fault)))
            os._exit(1)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        runner.start(request)
        gc.enable()
        runner.send(Ready())
        runner.serve()
    finally:
        os._exit(1)


def _say(message: SetupFailed) -> None:
    data = _encode(message)
    os.write(DESCRIPTOR, len(data).to_bytes(4, "little") + data)


if __name__ == "__main__":
    main()
