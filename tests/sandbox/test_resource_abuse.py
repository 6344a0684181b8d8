"""Code that exhausts resources: what its caller sees, and that other sessions are not affected."""

from __future__ import annotations

from pathlib import Path

import pytest

from envweave.sandbox import Limits, Sandbox

pytestmark = pytest.mark.slow  # starts many sandbox sessions

_LIMITS = Limits(timeout_s=3, memory_bytes=256 << 20, disk_bytes=8 << 20, files=256)


@pytest.fixture(scope="module", params=["namespace", "landlock"])
def box(request):
    with Sandbox(isolation=request.param, limits=_LIMITS, tools={"echo": lambda x: x}) as box:
        yield box


@pytest.fixture(scope="module")
def neighbour(box):
    with box.session() as session:
        session.run("mine = 'still here'")
        yield session


@pytest.fixture
def session(box, neighbour):
    with box.session() as session:
        yield session
        session.close()
        assert neighbour.run("mine").return_value == "still here"


def test_a_fork_bomb_is_refused_at_its_first_fork(session):
    result = session.run("import os\nwhile True: os.fork()")

    assert (result.exception_type, result.session_ended) == ("PermissionError", False)
    assert session.run("1 + 1").return_value == 2


def test_a_thread_bomb_stops_at_the_limit(session):
    result = session.run(
        "import threading, time\nn = 0\ntry:\n"
        "    while n < 5000:\n"
        "        threading.Thread(target=time.sleep, args=(5,), daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nn"
    )

    assert result.return_value is None or result.return_value < 200
    assert result.success or result.limits_hit == ("memory",)


def test_memory_over_the_limit_raises_memory_error(session):
    result = session.run("x = []\nwhile True: x.append(bytearray(10 << 20))")

    assert (result.exception_type, result.limits_hit) == ("MemoryError", ("memory",))
    assert session.run("x = None; 1 + 1").return_value == 2


@pytest.mark.slow  # starts several sandboxes
def test_small_objects_over_the_limit_raise_memory_error_too(session):
    result = session.run("x = []\nwhile True: x.append('%d' % len(x))", timeout_s=30)

    assert "memory" in result.limits_hit


def test_a_full_disk_is_reported_and_the_session_continues(session):
    result = session.run(
        "n = 0\nwith open('big', 'wb') as f:\n    while n < 64: f.write(b'x' * (1 << 20)); n += 1"
    )

    assert not result.success
    assert result.exception_type == "OSError" or result.limits_hit == ("disk",)


def test_the_number_of_files_is_limited(session):
    result = session.run("n = 0\nwhile n < 100_000: open(str(n), 'w').close(); n += 1")

    assert not result.success
    assert result.exception_type == "OSError" or result.limits_hit


def test_the_number_of_open_files_is_limited(session):
    result = session.run("import os\nopened = []\nwhile True: opened.append(os.dup(0))")

    assert (result.exception_type, "Too many open files" in result.exception_message) == (
        "OSError",
        True,
    )
    assert session.run("for one in opened: os.close(one)\n1 + 1").return_value == 2


@pytest.mark.slow  # starts several sandboxes
def test_endless_output_is_truncated_and_its_code_interrupted(session):
    result = session.run("while True: print('x' * 1000)", timeout_s=0.3)

    assert len(result.stdout.encode()) <= _LIMITS.output_bytes + 200
    assert set(result.limits_hit) == {"time", "output"}
    assert session.run("1 + 1").return_value == 2


def test_endless_output_to_the_descriptor_is_truncated_too(session):
    result = session.run("import os\nwhile True: os.write(1, b'x' * 1000)", timeout_s=0.5)

    assert len(result.stdout) <= _LIMITS.output_bytes + 200
    assert not result.success


@pytest.mark.parametrize("code", ["while True: pass", "10**10**8", "import time; time.sleep(1e6)"])
def test_an_infinite_loop_is_interrupted_and_keeps_its_variables(session, code):
    session.run("x = 5")
    result = session.run(code, timeout_s=0.3)

    assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
    if not result.session_ended:
        assert session.run("x").return_value == 5


@pytest.mark.slow  # waits for a deadline
def test_code_that_ignores_interrupts_is_killed(session):
    result = session.run(
        "import time\ntry:\n    while True: time.sleep(.001)\nfinally: time.sleep(1000)",
        timeout_s=0.2,
    )

    assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
    assert result.session_ended


@pytest.mark.slow  # starts several sandboxes
def test_a_stack_overflow_is_an_error_of_the_code(session):
    result = session.run("def f(): f()\nf()")

    assert result.exception_type == "RecursionError"
    assert session.run("1 + 1").return_value == 2


def test_a_thread_outlives_its_run_but_not_its_session(session):
    session.run(
        "import threading, time\nn = 0\ndef count():\n"
        "    global n\n    while True: n += 1; time.sleep(.001)\n"
        "threading.Thread(target=count, daemon=True).start()"
    )
    session.run("time.sleep(.05)")

    assert session.run("n > 1").return_value is True


def test_endless_tool_calls_stop_at_the_limit(session):
    result = session.run("n = 0\nwhile True:\n    echo(1)\n    n += 1", timeout_s=20)

    assert "tool_calls" in result.limits_hit
    assert session.run("n").return_value == Limits().tool_calls


@pytest.mark.slow  # starts several sandboxes
def test_a_shell_fork_bomb_stays_within_its_session(box, neighbour):
    limits = Limits(timeout_s=2, processes=50)
    with Sandbox(isolation=box.tier.name, profile="shell", limits=limits) as shell:
        with shell.session() as session:
            result = session.run(
                "import os, time\n"
                "while True:\n    try: os.fork()\n    except OSError: time.sleep(.01)",
                timeout_s=1,
            )

            assert not result.success
            assert neighbour.run("mine").return_value == "still here"
        with shell.session() as session:
            assert session.run("1 + 1").return_value == 2


def test_a_shell_can_use_programs_files_and_pipes(box):
    with Sandbox(isolation=box.tier.name, profile="shell") as shell, shell.session() as session:
        result = session.run(
            "import subprocess\n"
            "script = 'printf \"b\\\\na\\\\n\" > f && sort f | tr a-z A-Z; exit 3'\n"
            "subprocess.run(['bash', '-c', script], capture_output=True, text=True).__dict__"
        )

        assert result.return_value["stdout"] == "A\nB\n"
        assert result.return_value["returncode"] == 3
        assert session.list_files() == ["f"]


def test_a_shell_has_no_network_and_no_files_of_the_host(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with Sandbox(isolation=box.tier.name, profile="shell") as shell, shell.session() as session:
        result = session.run(
            "import subprocess\n"
            f"subprocess.run('cat {secret}; cat /etc/shadow; echo x > /usr/bin/x; "
            "exec 3<>/dev/tcp/127.0.0.1/22', shell=True, executable='/bin/bash', "
            "capture_output=True, text=True).stdout"
        )

    assert result.return_value == ""
    assert not Path("/usr/bin/x").exists()
