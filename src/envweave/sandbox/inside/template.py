"""The template: a fresh interpreter that every session is a fork of.

It is started by exec with an empty environment, never forked from the host, whose memory holds
answers and keys. It imports what sessions need, sets up its walls, and then only forks and reports.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` wraps it in enums, which use memory
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
from envweave.sandbox.inside.branch import (
    BranchServer,
    copy_and_exit,
    copy_failed,
    copy_with_helper,
)
from envweave.sandbox.inside.heap import fill_gaps
from envweave.sandbox.inside.listed_folders import use_listings
from envweave.sandbox.inside.runner import SessionRunner, warm_up
from envweave.sandbox.protocol.messages import DESCRIPTOR, SetupFailed, SpawnRequest
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
    is_compact,
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
_decode_order = msgspec.msgpack.Decoder(Order).decode
_MAX_STATUSES = 4096
_DESCRIPTORS = 64
_REAP_MS = 500
_NO_DESCRIPTORS = "The template has no descriptors left: raise the limit on open files (ulimit -n)"
_CHILD_MASK = (1 << signal.SIGCHLD - 1).to_bytes(8, "little")


def main() -> NoReturn:
    """Read the plan, set up, and serve until the host is gone."""
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
        self._runner: SessionRunner | None = None
        self._runner_limits: tuple[int, int] | None = None
        self._request: SpawnRequest | None = None  # the one that `_runner` was made for
        self._loop: spawn.SpawnLoop | None = None
        self._importing = ""

    def run(self) -> NoReturn:
        """Set up and serve. Every failure is reported, and ends the process."""
        try:
            walls, gate, missing = self._set_up()
        except spawn.WallError as error:
            self._report(OrderFailed(error.wall, error.errno, str(error)))
            os._exit(1)
        except BaseException as error:  # noqa: BLE001 - a module that cannot be preloaded
            text = f"{self._importing}: {type(error).__name__}: {error}"
            self._report(OrderFailed("preload", 0, text))
            os._exit(1)
        ready = TemplateReady(missing, walls.native is not None, walls.can_loop)
        self._report(ready, [gate] if gate >= 0 else [])
        if gate >= 0:
            os.close(gate)
        self._serve(walls)

    def _set_up(self) -> tuple[spawn.Walls, int, list[str]]:
        plan = self._plan
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        host = os.pidfd_open(plan.host)
        processes = -1
        if plan.isolation == "namespace":
            processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        if plan.cpu is not None:
            os.sched_setaffinity(0, {plan.cpu})
        # Before the walls: sessions do not see envweave's own files.
        native = _native() if plan.native else None
        own = [name for name in plan.preload if name.split(".")[0] == "envweave"]
        for self._importing in own:
            importlib.import_module(self._importing)
        if plan.isolation == "namespace":
            self._enter_namespaces()
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
        """Restrict imports to the folders that sessions may read."""
        if self._plan.isolation == "none":
            sys.path.extend(path for path in self._plan.path if path not in sys.path)
            return
        sys.path[:] = self._plan.path
        # Finders of editable installs know paths that sessions must not.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
        if self._plan.listings:
            use_listings(self._plan.listings)
        sys.path_importer_cache.clear()

    def _enter_namespaces(self) -> None:
        """Enter the namespaces and the read-only root.

        Root builds the root folder while it may still read what only root may, such as an
        interpreter in a private folder. Other users first become root of a namespace.
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
                # Otherwise only the host's root could enter the mounts of a branch.
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
        # Blocked rather than ignored or handled: a session then has nothing to undo but the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ended = kernel.call(
            "signalfd4", -1, _CHILD_MASK, len(_CHILD_MASK), os.O_NONBLOCK | os.O_CLOEXEC
        )
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._host, select.POLLIN)
        poll.register(ended, select.POLLIN)
        # A thread of a preloaded module may swallow the signal.
        wait_ms = None if walls.alone else _REAP_MS
        while True:
            if self._loop is not None:
                self._run_loop(self._loop, ended)
                wait_ms = 0
            found = poll.poll(wait_ms)
            if not found and not walls.alone:
                self._reap()
            for descriptor, _ in found:
                if descriptor == self._host:
                    self._end()
                if descriptor == ended:
                    with contextlib.suppress(BlockingIOError):
                        os.read(ended, 4096)
                    self._reap()
                    continue
                order, descriptors = self._receive()
                self._execute(order, descriptors, walls)
                for one in descriptors:
                    os.close(one)

    def _run_loop(self, loop: spawn.SpawnLoop, ended: int) -> None:
        outcome = loop.run(self._control.fileno(), self._host, ended)
        if isinstance(outcome, spawn.Forked):
            assert self._runner is not None
            assert self._request is not None
            _run_session(self._runner, self._request, outcome.error)
        for pid, status in outcome.events:
            if status is None:
                self._add(pid)
            else:
                self._remove(pid, status)
        if outcome.errno == errno.EMFILE:
            self._report(OrderFailed("descriptors", errno.EMFILE, _NO_DESCRIPTORS))
        elif outcome.errno:
            error = OSError(outcome.errno, os.strerror(outcome.errno))
            self._report(OrderFailed("namespaces", outcome.errno, str(error)))

    def _execute(self, order: Order, descriptors: list[int], walls: spawn.Walls) -> None:
        if isinstance(order, Spawn):
            self._spawn(order, descriptors, walls)
        elif isinstance(order, GetExitStatus):
            self._reap()
            self._report(ExitStatus(self._ended.pop(order.pid, None)))
        else:
            self._copy_files(order, descriptors, walls)

    def _spawn(self, order: Spawn, descriptors: list[int], walls: spawn.Walls) -> None:
        each = 1 + order.cgroup_files
        if len(descriptors) != len(order.requests) * each:
            # The kernel drops what does not fit.
            self._report(OrderFailed("descriptors", errno.EMFILE, _NO_DESCRIPTORS))
            return
        pids: list[int] = []
        processes: list[int] = []
        for at, request in enumerate(order.requests):
            descriptor, *cgroup_files = descriptors[at * each : (at + 1) * each]
            runner = self._runner_for(request, order.cgroup_files, walls)
            try:
                pid, process, fault = spawn.spawn(walls, request, descriptor, cgroup_files)
            except OSError as error:
                for one in processes:  # these are not reported
                    _signal.pidfd_send_signal(one, _signal.SIGKILL)
                    os.close(one)
                self._report(OrderFailed("namespaces", error.errno or 0, str(error)))
                return
            if pid == 0:
                _run_session(runner, request, fault)
            self._add(pid)
            pids.append(pid)
            processes.append(process)
        self._report(Spawned(pids), processes)
        for process in processes:
            os.close(process)

    def _add(self, pid: int) -> None:
        self._ended.pop(pid, None)  # an earlier process with that PID
        self._living.add(pid)

    def _remove(self, pid: int, status: int) -> None:
        self._living.discard(pid)
        self._ended[pid] = status
        if len(self._ended) > _MAX_STATUSES:
            self._ended.pop(next(iter(self._ended)))

    def _runner_for(
        self, request: SpawnRequest, cgroup_files: int, walls: spawn.Walls
    ) -> SessionRunner:
        """Return a runner for a new session: made once for all with the same limits."""
        limits = (request.output_bytes, request.message_bytes)
        if self._runner is None or self._runner_limits != limits:
            self._runner = SessionRunner(request, spawn.OUTPUT_STATUSES)
            self._runner.on_branch = BranchServer(self._runner)
            self._runner_limits = limits
            self._request = request
            if walls.can_loop:
                self._loop = spawn.SpawnLoop(walls, request, cgroup_files)
            warm_up(self._runner)
            gc.collect()
            fill_gaps()
            gc.freeze()
        return self._runner

    def _copy_files(self, order: CopyFiles, descriptors: list[int], walls: spawn.Walls) -> None:
        """Copy the files of a branch. Whatever goes wrong fails that branch alone."""
        if len(descriptors) != 2:
            self._report(OrderFailed("descriptors", errno.EMFILE, _NO_DESCRIPTORS))
            return
        try:
            report = copy_with_helper(order, descriptors[0], walls)
            if report is None:
                report = self._copy_in_fork(order, descriptors, walls)
        except Exception as error:  # noqa: BLE001 - reported; other sessions need this process
            report = copy_failed(error)
        self._report(report)

    def _copy_in_fork(
        self, order: CopyFiles, descriptors: list[int], walls: spawn.Walls
    ) -> Copied | OrderFailed:
        """Copy in a separate process: this one must not leave its mounts."""
        branch, parent = descriptors
        readable, writable = os.pipe()
        # In a new PID namespace, because the gate would refuse a fork into this one.
        with open(readable, "rb") as pipe:
            try:
                pid, descriptor = kernel.clone(kernel.NEW_PIDS, alone=walls.alone)
                if pid == 0:
                    copy_and_exit(order, branch, parent, walls, writable)
            finally:
                os.close(writable)
            os.close(descriptor)
            data = pipe.read(MESSAGE_BYTES)
        try:
            report: Copied | OrderFailed = msgspec.msgpack.decode(data, type=Copied | OrderFailed)
        except msgspec.DecodeError:
            report = OrderFailed("branch", 0, "its files could not be copied")
        return report

    def _receive(self) -> tuple[Order, list[int]]:
        data, ancillary, _, _ = self._control.recvmsg(
            MESSAGE_BYTES, socket.CMSG_SPACE(4 * _DESCRIPTORS)
        )
        if not data:
            self._end()
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content[: len(content) - len(content) % 4])
        return self._read_order(data), list(descriptors)

    def _read_order(self, data: bytes) -> Order:
        if is_compact(data):
            users, each = decode_compact(data)
            assert self._request is not None
            requests = [msgspec.structs.replace(self._request, user=user) for user in users]
            return Spawn(requests, each - 1)
        order: Order = _decode_order(data)
        return order

    def _report(self, report: Report, descriptors: list[int] | None = None) -> None:
        attached = []
        if descriptors:
            attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._control.sendmsg([_encode(report)], attached)
        except OSError:
            os._exit(0)

    def _end(self) -> NoReturn:
        """Kill the sessions, wait until they are gone, and exit."""
        for pid in self._living:
            self._kill_group(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        os._exit(0)

    def _kill_group(self, pid: int) -> None:
        """Kill the programs that a session started, where the kernel does not do it.

        Only while the session lives or is a zombie: later its PID may have been reused.
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
                self._kill_group(found.si_pid)
                self._remove(*os.waitpid(found.si_pid, 0))


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


def _run_session(
    runner: SessionRunner, request: SpawnRequest, fault: spawn.WallError | None
) -> NoReturn:
    """Run as a session, from the first instruction behind its walls to the end.

    Args:
        runner: Made for such a request.
        request: The parameters of the session.
        fault: Why its walls could not be set up.
    """
    try:
        if fault is not None:
            _send_failure(SetupFailed(fault.wall, fault.errno, str(fault)))
            os._exit(1)
        runner.start(request)
        gc.enable()
        runner.serve()
    finally:
        os._exit(1)


def _send_failure(message: SetupFailed) -> None:
    data = _encode(message)
    os.write(DESCRIPTOR, len(data).to_bytes(4, "little") + data)


if __name__ == "__main__":
    main()
