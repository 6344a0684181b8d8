"""Nothing is left behind after kill -9 of the host, after Ctrl-C, or when a template dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import is_alive

from envweave.errors import SessionLostError
from envweave.sandbox import Sandbox

pytestmark = pytest.mark.slow  # starts many sandbox sessions

_HOST = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a shell made of it
from envweave.sandbox import Sandbox
box = Sandbox(isolation={isolation!r}, profile={profile!r})
sessions = box.sessions({count})
import threading
for one in sessions:
    threading.Thread(target=one.run, args=("while True: pass",), daemon=True).start()
pids = [one._handle.pid for one in sessions] + box.template_pids()
print(*pids, flush=True)
{then}
"""


def _wait_until_gone(pids, timeout_s=30.0):
    ends_s = time.monotonic() + timeout_s
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < ends_s, f"still there: {left}"
        time.sleep(0.01)


def _start_host(count, *, isolation="namespace", profile="python", then="time.sleep(600)"):
    code = _HOST.format(count=count, isolation=isolation, profile=profile, then=then)
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return host, [int(one) for one in host.stdout.readline().split()]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("isolation", ["namespace", "landlock", "none"])
def test_a_host_that_is_killed_leaves_no_process(isolation):
    count = 200 if isolation == "namespace" else 20
    host, pids = _start_host(count, isolation=isolation)
    assert len(pids) == count + 1

    host.send_signal(signal.SIGKILL)

    host.wait()
    host.stdout.close()
    _wait_until_gone(pids)


def test_a_host_killed_while_spawning_leaves_no_process(tmp_path):
    code = (
        "from envweave.sandbox import Sandbox\n"
        "box = Sandbox()\n"
        "print(box.template_pids()[0], flush=True)\n"
        "while True: sessions = box.sessions(16)\n"
    )
    host = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE)
    template = int(host.stdout.readline())
    group = os.getsid(template)

    host.kill()

    host.wait()
    host.stdout.close()
    _wait_until_gone([template])
    _wait_until_gone(_in_session(group))


def _in_session(group):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(entry.name)) == group:
                found.append(int(entry.name))
    return found


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_host_that_is_terminated_leaves_no_process(number):
    host, pids = _start_host(4)

    host.send_signal(number)

    host.wait()
    host.stdout.close()
    _wait_until_gone(pids)


@pytest.mark.slow  # starts several sandboxes
def test_a_host_that_forgets_to_close_leaves_no_process():
    host, pids = _start_host(4, then="sys.exit()")

    host.wait()

    host.stdout.close()
    _wait_until_gone(pids)


def test_a_host_that_was_forked_does_not_keep_sessions_alive():
    """The child holds the host's end of every socket; only the death of the host counts."""
    then = "import os, signal\nif os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    host, pids = _start_host(2, then=then)
    listed = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text()
    copies = {int(one) for one in listed.split()} - set(pids)

    host.kill()

    host.wait()
    host.stdout.close()
    try:
        _wait_until_gone(pids)
    finally:
        for pid in copies:
            os.kill(pid, signal.SIGKILL)


def test_a_thread_that_made_a_sandbox_may_end():
    """To the kernel the parent is a thread; a sandbox must not die with that thread."""
    made = []
    thread = threading.Thread(target=lambda: made.append(Sandbox()))
    thread.start()
    thread.join()

    with made[0] as box, box.session() as session:
        assert session.run("1 + 1").return_value == 2


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("isolation", ["namespace", "landlock"])
def test_killing_the_template_loses_its_sessions_and_the_sandbox_recovers(isolation):
    with Sandbox(isolation=isolation) as box:
        sessions = box.sessions(5)
        pids = [one._handle.pid for one in sessions]

        os.kill(box.template_pids()[0], signal.SIGKILL)

        _wait_until_gone(pids)
        for session in sessions:
            with pytest.raises(SessionLostError, match="its code did not cause"):
                session.run("1")
        with box.session() as session:
            assert session.run("1 + 1").return_value == 2


def test_killing_the_template_during_a_run_raises_for_the_caller():
    with Sandbox() as box, box.session() as session:
        template = box.template_pids()[0]
        killer = threading.Timer(0.2, os.kill, (template, signal.SIGKILL))
        killer.start()

        with pytest.raises(SessionLostError):
            session.run("while True: pass", timeout_s=30)
        killer.join()
        with box.session() as other:
            assert other.run("2").return_value == 2


@pytest.mark.parametrize("isolation", ["landlock", "none"])
def test_the_work_folder_is_removed_with_its_session(isolation):
    with Sandbox(isolation=isolation) as box:
        with box.session() as session:
            made = session.run("import os; open('a', 'w').write('b'); os.getcwd()")
            folder = Path(made.return_value)
            assert (folder / "a").read_text() == "b"

        assert not folder.exists()


def test_processes_that_shell_code_started_end_with_the_session():
    for isolation in ("namespace", "landlock"):
        with Sandbox(isolation=isolation, profile="shell") as box, box.session() as session:
            started = session.run(
                "import subprocess, os\n"
                "subprocess.Popen('sleep 1000 & sleep 1000 & (nohup setsid sleep 1000 &) ; wait', "
                "shell=True)\nos.getpid()"
            )
            pids = _in_session(os.getsid(session._handle.pid)) if isolation == "landlock" else []
            pids.append(session._handle.pid)

            assert started.success
            session.close()

            _wait_until_gone(pids)
            assert not _named("sleep 1000")


def _named(text):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            if line == text.encode():
                found.append(int(entry.name))
    return found


_SHELL_HOST = """
import time
from envweave.sandbox import Sandbox
box = Sandbox(isolation="landlock", profile="shell")
session = box.session()
code = "import subprocess; [subprocess.Popen(['sleep', '600'], start_new_session=False).pid]"
print(*session.run(code).return_value, *box.template_pids(), session._handle.pid, flush=True)
time.sleep(600)
"""


def test_a_host_that_is_killed_leaves_no_program_that_a_session_started():
    host = subprocess.Popen([sys.executable, "-c", _SHELL_HOST], stdout=subprocess.PIPE, text=True)
    pids = [int(one) for one in host.stdout.readline().split()]
    assert len(pids) == 3

    host.send_signal(signal.SIGKILL)

    host.wait()
    host.stdout.close()
    _wait_until_gone(pids)


def test_programs_of_a_session_that_died_are_killed_before_it_is_closed():
    code = "import os, subprocess; child = subprocess.Popen(['sleep', '600']).pid; child"
    with Sandbox(isolation="landlock", profile="shell") as box, box.session() as session:
        child = session.run(code).return_value

        session.run("os._exit(0)")

        _wait_until_gone([child])
