"""The compiled extension makes the same sessions as the Python code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import descendants
from staging import NoInterpreterError, other_user

from envweave.sandbox import Sandbox
from envweave.sandbox.processes.process import SessionProcess
from envweave.sandbox.processes.process_group import ProcessGroup
from envweave.sandbox.processes.resources import SessionResources
from envweave.sandbox.processes.template import WallSetupError
from envweave.sandbox.protocol.messages import SpawnRequest
from envweave.sandbox.walls.mounts import WORK

try:
    from envweave.sandbox import _spawn
except ImportError:
    _spawn = None

IN_CI = os.environ.get("CI") == "true"
TIMEOUT_S = 20.0

FACTS = """
import ctypes, fcntl, gc, os, resource, signal, stat, sys, threading
from envweave.sandbox.walls import kernel

def answer(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return f"errno {error.errno}"

def descriptor(number):
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        return None
    return stat.filemode(mode), fcntl.fcntl(number, fcntl.F_GETFL), os.get_inheritable(number)

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[1]

held = ctypes.create_string_buffer(24)
kinds = {name for name in dir(resource) if name.startswith("RLIMIT_")}
if os.getcwd() != "/home/agent":
    kinds.remove("RLIMIT_NPROC")  # it counts others, who come and go
mask = os.umask(0o22)
{
    "root": sorted(os.listdir("/")) if os.getcwd() == "/home/agent" else None,
    "files": sorted(os.listdir(".")),
    "room": [os.statvfs(".").f_blocks, os.statvfs(".").f_files, os.statvfs(".").f_flag],
    "limits": {kind: resource.getrlimit(getattr(resource, kind)) for kind in sorted(kinds)},
    "descriptors": [descriptor(number) for number in range(64)],
    "output": [answer(os.lseek, number, 0, 1) for number in (0, 1, 2)],
    "capget": answer(kernel.call, "capget", bytes.fromhex("2205082000000000"), held),
    "capabilities": held.raw,
    "groups": os.getresgid()[1:] == os.getresgid()[:2] and os.getgroups(),
    "one user": len(set(os.getresuid())),
    "first": os.getpid() == 1,
    "leads": os.getsid(0) == os.getpid(),
    "controls": [answer(kernel.process_control, option) for option in (2, 3, 21, 27, 39, 47)],
    "mask": mask,
    "handlers": [str(signal.getsignal(one)) for one in (signal.SIGCHLD, signal.SIGTERM)],
    "collects": gc.isenabled(),
    "threads": [threading.active_count(), threading.current_thread() is threading.main_thread()],
    "streams": [type(one).__name__ for one in (sys.stdout, sys.stderr, sys.__stdout__)],
    "new processes": answer(fork),
    "new mounts": answer(kernel.unshare, kernel.NEW_MOUNTS),
    "environment": sorted(os.environ),
}
"""

# Each line is a list of calls, and the expected errno.
CALLS = """
import errno, json, os
from envweave.sandbox import _spawn
from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.kernel import deferred as call

ones, zeros = bytearray(b"\\xff" * 8), bytearray(8)
CASES = [
    ([], 0),
    ([call("umask", 0o077)], 0),
    ([call("chdir", b"/"), call("close", 900)], errno.EBADF),
    ([call("close", 900, ignored_errno=errno.EBADF), call("chdir", b"/nowhere")], errno.ENOENT),
    ([call("chdir", b"/nowhere"), call("close", 900)], errno.ENOENT),
    ([call("dup3", 0, 77, 0, result=77)], 0),
    ([call("dup3", 0, 77, 0, result=78)], errno.EPERM),
    ([call("umask", 0, zeroed=zeros)], 0),
    ([call("umask", 0, zeroed=ones)], errno.EPERM),
    ([call("pread64", os.open("/dev/zero", os.O_RDONLY), ones, 8, 0, result=8, zeroed=ones)], 0),
    ([kernel.deferred_prctl(-5)], errno.EINVAL),
]

def made_here(made):
    pid = os.fork()
    if pid == 0:
        try:
            kernel.perform(made)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def made_there(made, alone):
    pid, process, failed, number = _spawn.spawn(0, made, alone)
    if pid == 0:
        os._exit(number if (failed >= 0) == (number > 0) and process == -1 else 255)
    os.close(process)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for made, expected in CASES:
    print(json.dumps([expected, made_here(made), made_there(made, 0), made_there(made, 1)]))
"""


@pytest.fixture(autouse=True)
def _extension() -> None:
    if _spawn is None:
        fail = pytest.fail if IN_CI else pytest.skip
        fail("The extension was not built: there is no compiler, or ENVWEAVE_NO_EXTENSION is set.")


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    ("tier", "profile"),
    [("namespace", "python"), ("namespace", "shell"), ("landlock", "shell"), ("none", "python")],
)
def test_a_session_is_the_same_with_the_extension_and_without(tier: str, profile: str) -> None:
    facts = []
    for native in (True, False):
        with Sandbox(isolation=tier, profile=profile, native=native) as box:
            with box.session(seed=1) as session:
                result = session.run(FACTS)
            assert box.tier.native is native
        assert result.success, result.traceback
        facts.append(result.return_value)

    assert facts[0] == facts[1]
    if tier != "none":
        assert facts[0]["capabilities"] == bytes(24)


@pytest.mark.parametrize("native", [True, False])
def test_a_failed_wall_is_reported_alike_with_and_without_the_extension(native: bool) -> None:
    nobody = 10**7  # beyond every map of user ids
    with Sandbox(isolation="namespace", native=native) as box:
        factory = box._factory
        template = factory._template(factory._shards[0])
        request = SpawnRequest(None, 1 << 16, 1 << 20, work=WORK, user=nobody)
        born = template.spawn([request])[0]
        held = SessionResources(None, None, None, factory._resources)
        body = SessionProcess(template, born, held, ProcessGroup(), factory._watcher)

        with pytest.raises(WallSetupError) as refusal:
            body.await_ready(time.monotonic() + 20)

        body.release()
    assert refusal.value.wall == "work folder"
    assert str(refusal.value) == "work folder: mount: Invalid argument"


def test_calls_have_the_same_outcome_with_and_without_the_extension() -> None:
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)

    rows = [json.loads(line) for line in done.stdout.splitlines()]

    assert len(rows) == 11
    assert [row for row in rows if len(set(row)) > 1] == []


@pytest.mark.parametrize(
    ("flags", "calls"),
    [
        (0, ()),
        (0, [None]),
        (0, [(1,)]),
        (0, [(1, [], None, 0, None)]),
        (0, [(1, (0,) * 7, None, 0, None)]),
        (0, [(1, ("text",), None, 0, None)]),
        (0, [(1, (), None, 0, b"")]),
        (0, [(39, (), None, 0, None)] * 129),
        ("0", []),
    ],
)
def test_an_invalid_list_of_calls_is_refused_before_any_is_made(flags: Any, calls: Any) -> None:
    before = descendants()

    with pytest.raises(TypeError):
        _spawn.spawn(flags, calls, 1)

    assert descendants() == before


def test_a_fork_refused_by_the_kernel_is_reported() -> None:
    sharing_without_memory = 0x0001_0000  # CLONE_THREAD, which requires CLONE_SIGHAND

    with pytest.raises(OSError, match="Invalid argument"):
        _spawn.spawn(sharing_without_memory, [], 1)


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("native", [True, False])
def test_many_sessions_at_once_leave_nothing_behind(native: bool) -> None:
    with Sandbox(isolation="namespace", native=native) as box:
        template = box.template_pids()[0]

        def held() -> tuple[int, int]:
            folders = (Path("/proc/self/fd"), Path(f"/proc/{template}/fd"))
            return len(list(folders[0].iterdir())), len(list(folders[1].iterdir()))

        storm(box, 20)
        assert until(lambda: len(descendants(template)) == 1)  # the warm one
        before, memory = held(), resident_bytes(template)

        storm(box, 80)

        assert until(lambda: len(descendants(template)) == 1)  # the warm one
        assert until(lambda: held() == before), (before, held())
        assert resident_bytes(template) < memory + (2 << 20)


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as others")
def test_an_unprivileged_session_is_the_same_with_and_without_the_extension() -> None:
    script = (
        "import json, sys\nfrom envweave.sandbox import Sandbox\n"
        "for native in (True, False):\n"
        "    with Sandbox(isolation='namespace', native=native) as box, box.session() as session:\n"
        "        result = session.run(sys.argv[1])\n"
        "        print(json.dumps([box.tier.native, result.success, result.return_repr]))\n"
    )
    try:
        with other_user("nobody") as other:
            done = other.run(["-c", script, FACTS], capture_output=True, text=True)
    except NoInterpreterError as error:
        (pytest.fail if IN_CI else pytest.skip)(str(error))

    assert done.returncode == 0, done.stderr
    native, other_way = (json.loads(line) for line in done.stdout.splitlines())
    assert (native[0], other_way[0]) == (True, False)
    assert native[1:] == other_way[1:]
    assert native[1], native[2]


def storm(box: Sandbox, count: int) -> None:
    for _ in range(count // 10):
        sessions = box.sessions(10)
        assert [session.run("1 + 1").return_value for session in sessions] == [2] * 10
        for session in sessions:
            session.close()


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
