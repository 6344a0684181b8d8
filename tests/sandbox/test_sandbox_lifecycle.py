"""Callers that fork, are interrupted or cancelled, close concurrently, or lack descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from processes import Leftovers

from envweave.errors import (
    BranchError,
    ClosedError,
    OptionError,
    SandboxError,
    SessionLostError,
)
from envweave.sandbox import AsyncSandbox, Sandbox

pytestmark = pytest.mark.slow  # starts many sandbox sessions

_TIMEOUT_S = 30.0


def _wait_until(holds):
    ends_s = time.monotonic() + _TIMEOUT_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def _output_of(code, *options):
    """Run a separate host, since a fork copies the locks of all threads; return its output."""
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split("\n")[:-1] or [done.stderr]


_FORKING = """
import os, sys
from envweave.sandbox import Sandbox
box = Sandbox()
session = box.session()
if os.fork() == 0:
    {child}
os.wait()
print(session.run("1 + 1").return_value, flush=True)
session.close()
box.close()
"""


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    "child", ["box.close(); os._exit(0)", "sys.exit()", "del box; os._exit(0)"]
)
def test_a_forked_child_of_the_host_ends_no_session_of_its_parent(child):
    assert _output_of(_FORKING.format(child=child), "-W", "ignore") == ["2"]


def test_a_forked_child_of_the_host_must_make_a_separate_sandbox():
    child = """
    try: box.session()
    except Exception as error: print(type(error).__name__, error, flush=True)
    os._exit(0)"""

    output, works = _output_of(_FORKING.format(child=child))

    assert output.startswith("CallOrderError session() on a sandbox that was made before")
    assert works == "2"


def test_a_template_exits_with_its_host_though_a_forked_child_lives():
    code = """
import os, signal, time
from envweave.sandbox import Sandbox
box = Sandbox()
template = box._factory._shards[0].template
copy = os.fork()
if copy == 0:
    time.sleep(600)
box.close()
os.kill(copy, signal.SIGKILL)
os.wait()
print(template._process.returncode)
"""

    assert _output_of(code) == ["0"]


def test_a_dropped_sandbox_is_closed_even_if_warnings_are_errors():
    code = """
import os
from envweave.sandbox import Sandbox
box = Sandbox()
template = box.template_pids()[0]
del box
print(os.path.exists(f"/proc/{template}"))
"""

    assert _output_of(code, "-W", "error::ResourceWarning") == ["False"]


@pytest.mark.slow  # starts several sandboxes
def test_a_signal_handler_may_interrupt_a_session_that_is_closing():
    code = """
import os, signal
from envweave.sandbox import Sandbox
with Sandbox() as box, box.session() as session:
    signal.signal(signal.SIGALRM, lambda *_: session.interrupt())
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.01)
    for _ in range(3):
        with box.session() as session:
            while not session.run("import os; os.close(3)\\nwhile True: pass").session_ended:
                pass  # it was interrupted before it came to that
            print("ended")
    signal.setitimer(signal.ITIMER_REAL, 0)
"""

    assert _output_of(code) == ["ended"] * 3


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
def test_a_caller_interrupted_while_making_a_session_gets_the_next_one_intact(raised):
    """The interrupted order's report must not be taken for the next one's."""

    def interrupt(*_):
        raise raised("mine")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Sandbox() as box, box.session() as neighbour:
            template = box.template_pids()[0]
            neighbour.run("x = 1")

            os.kill(template, signal.SIGSTOP)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(raised, match="mine"):
                box.session()
            os.kill(template, signal.SIGCONT)

            for _ in range(2):
                with box.session() as session:
                    result = session.run("while True: pass", timeout_s=0.1)
                    assert (result.exception_type, result.session_ended) == ("TimeLimit", False)
                    assert not session._handle.is_gone()
            assert neighbour.run("x").return_value == 1
    finally:
        signal.signal(signal.SIGALRM, before)


def test_closing_while_other_threads_make_sessions_raises_there_and_leaves_nothing():
    left = Leftovers()
    box = Sandbox(warm=1)
    errors = []
    busy = threading.Barrier(5)

    def work():
        try:
            box.session().close()
            busy.wait()
            while True:
                with box.session() as session, session.branch() as branch:
                    branch.run("1")
        except Exception as error:  # noqa: BLE001 - each is checked
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    busy.wait(_TIMEOUT_S)
    box.close()
    for thread in threads:
        thread.join(_TIMEOUT_S)

    assert [type(one) for one in errors if not isinstance(one, SandboxError | ClosedError)] == []
    assert len(errors) == 4
    assert box.template_pids() == []
    assert left.descriptors() == []


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("count", [None, 4])
def test_a_cancelled_task_leaves_no_session(count):
    async def main():
        async with await AsyncSandbox.start() as box:
            async with box.session() as session:  # the first is kept warm
                await session.run("1")
            left = Leftovers()
            (template,) = box.template_pids()
            os.kill(template, signal.SIGSTOP)

            task = asyncio.create_task(_ask_for(box, count))
            while not box._factory._shards[0].template._lock.locked():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            os.kill(template, signal.SIGCONT)

            await asyncio.to_thread(_wait_until, lambda: left.descriptors() == [])

    asyncio.run(main())


async def _ask_for(box, count):
    return await (box.session() if count is None else box.sessions(count))


@contextlib.contextmanager
def _spare_descriptors(count):
    """Leave this process only this many free descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 32, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in held:
            os.close(one)


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("spare", [0, 1, 2, 3, 8, 9])
def test_running_out_of_descriptors_raises_and_loses_no_session(spare):
    with Sandbox() as box, box.session() as session:
        left = Leftovers()

        with _spare_descriptors(spare):
            with pytest.raises(SandboxError, match=r"Too many open files.*ulimit -n"):
                box.sessions(4)
            if spare < 2:
                with pytest.raises(BranchError, match="Too many open files"):
                    session.branch()

        assert session.run("1 + 1").return_value == 2
        assert left.descriptors() == []
        with box.session() as other:
            assert other.run("2").return_value == 2


def test_tools_with_long_docstrings_do_not_overload_the_template():
    def tool(n: int) -> int:
        return n + 1

    tool.__doc__ = "It adds one. " * 300
    tools = {f"tool_{n}": tool for n in range(100)}
    with Sandbox() as box, box.session() as neighbour:
        sessions = box.sessions(3, tools=tools)

        assert [one.run("tool_99(1)").return_value for one in sessions] == [2, 2, 2]
        assert neighbour.run("1").return_value == 1
        for one in sessions:
            one.close()


def test_a_closed_session_is_only_stopped_while_its_branches_live():
    """The kernel would kill them with it, but not at once: a branch might still answer."""
    with Sandbox() as box:
        session = box.session()
        pid = session._handle.pid
        branch = session.branch()

        session.close()

        _wait_until(lambda: "(stopped)" in Path(f"/proc/{pid}/status").read_text())
        assert branch.run("1 + 1").return_value == 2
        branch.close()
        _wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("seed", [-1, 1 << 63, 1 << 70, True, "7"])
def test_an_invalid_seed_is_refused_and_other_sessions_survive(seed):
    with Sandbox() as box, box.session() as session:
        with pytest.raises(OptionError, match=r"session\(seed=.*from 0 to"):
            box.session(seed=seed)
        with pytest.raises(OptionError, match=r"branch\(seed=.*from 0 to"):
            session.branch(seed=seed)

        assert session.run("1").return_value == 1


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("spare", range(7))
def test_a_sandbox_that_cannot_be_made_leaves_nothing(spare, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Sandbox():  # whatever is made once per process
        pass
    left = Leftovers()

    with _spare_descriptors(spare), pytest.raises(SandboxError, match="Too many open files"):
        Sandbox()

    assert left.descriptors() == []
    assert list(tmp_path.iterdir()) == []


def test_cancelling_a_call_in_the_middle_of_a_message_loses_the_session():
    async def main():
        async with await AsyncSandbox.start() as box, box.session() as session:
            os.kill(session._handle.pid, signal.SIGSTOP)  # it reads no more

            put = asyncio.create_task(session.put("x", bytes(8 << 20)))
            while not session._is_half_sent:
                await asyncio.sleep(0.001)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put

            with pytest.raises(SessionLostError, match="interrupted on the host's side"):
                await session.run("1")

    asyncio.run(main())
