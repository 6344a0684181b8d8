"""The fork gate in the kernel: a fork waits for the answer of the listener."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

GATED = """
import array, errno, fcntl, os, signal, socket, struct, threading
from envweave.sandbox.walls import capabilities, kernel, policy, seccomp
from envweave.sandbox.walls.syscall_numbers import MACHINE, NUMBERS

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

def live_behind_the_gate():
    gate = seccomp.assemble(policy.gate_policy(), MACHINE)
    capabilities.no_new_privileges()
    listener = seccomp.install(gate, seccomp.NEW_LISTENER)
    socket.send_fds(theirs, [b"l"], [listener])
    os.close(listener)
    if {session}:
        seccomp.install(seccomp.assemble(policy.session_policy(
            shell=False, pid=None, signals_scoped=True, branching=True), MACHINE))
    outcomes = []
    for act in (fork, fork, unshare, thread, other_namespace):
        try:
            outcomes.append(str(act()))
        except OSError as error:
            outcomes.append(errno.errorcode[error.errno])
    print(" ".join(outcomes))

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    return "child" if os.waitpid(child, 0)[0] == child else "?"

def unshare():
    kernel.unshare(kernel.NEW_USERS | kernel.NEW_MOUNTS)

def thread():
    worker = threading.Thread(target=int)
    worker.start()
    worker.join()
    return "thread"

def other_namespace():
    kernel.unshare(0)
    return "unshared"

if os.fork() == 0:
    live_behind_the_gate()
    os._exit(0)
theirs.close()
listener = socket.recv_fds(ours, 1, 1)[1][0]
# The first fork is refused, the second goes on in the kernel, the namespaces are refused.
for error, flags in ((-errno.EAGAIN, 0), (0, 1), (-errno.EXDEV, 0)):
    notification = bytearray(80)
    fcntl.ioctl(listener, 0xC0502100, notification)
    (cookie,) = struct.unpack_from("<Q", notification)
    number = struct.unpack_from("<i", notification, 16)[0]
    print(next(name for name in NUMBERS if NUMBERS[name] == number))
    fcntl.ioctl(listener, 0xC0182101, struct.pack("<QqiI", cookie, 0, error, flags))
os.wait()
"""


def run(session: bool) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-u", "-c", GATED.replace("{session}", str(session))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_forks_and_the_namespaces_of_a_branch_wait_for_the_listener():
    events = run(session=False)

    assert events == ["clone", "clone", "unshare", "EAGAIN", "child", "EXDEV", "thread", "unshared"]


def test_a_session_that_branches_is_reported_and_refused_anything_else():
    events = run(session=True)

    assert events == ["clone", "clone", "unshare", "EAGAIN", "child", "EXDEV", "thread", "EPERM"]
