"""What is left of containers that run code, when whoever started them ends in a bad way."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from docker_images import containers_of, inspect

import envweave as ew

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]

STARTER = """
import sys, threading
import envweave as ew
from envweave.providers.reaper import Owner
env = ew.create_codeact_env(executor="docker", limits={"timeout_s": 100.0})
env.reset()
print(Owner.here().mark, env.step({"code": "6 * 7"}).execution_result.return_value, flush=True)
{then}
"""


def starter(then: str) -> subprocess.Popen[str]:
    """Return a process that has run code in a container, and then does something."""
    code = STARTER.replace("{then}", then)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_by(process: subprocess.Popen[str]) -> str:
    """Return the mark of a process that has started a container."""
    assert process.stdout is not None
    mark, _, value = process.stdout.readline().strip().rpartition(" ")
    assert value == "42"
    return mark


def state_of(name: str) -> dict[str, Any]:
    state: dict[str, Any] = inspect(name)["State"]
    return state


@pytest.mark.parametrize(
    "then", ["threading.Event().wait(100)", "env.step({'code': 'while 1: 0'})"]
)
def test_after_kill_9_the_code_stops_by_itself_and_the_next_start_removes_the_container(
    then: str,
) -> None:
    with starter(then) as process:
        mark = said_by(process)
        (name,) = containers_of(mark)
        process.kill()
        process.wait(20)
    ends_s = time.monotonic() + 60
    while state_of(name)["Running"] and time.monotonic() < ends_s:
        time.sleep(0.1)
    state = state_of(name)
    with ew.create_codeact_env(executor="docker") as env:
        env.reset()

        assert not state["Running"]
        assert containers_of(mark) == []


@pytest.mark.parametrize("then", ["", "raise RuntimeError", "del env", "sys.exit(1)"])
def test_a_program_that_ends_takes_its_container_along(then: str) -> None:
    with starter(then) as process:
        mark = said_by(process)
        process.communicate(timeout=100)

    assert containers_of(mark) == []


@pytest.mark.parametrize(
    "then", ["threading.Event().wait(100)", "env.step({'code': 'while 1: 0'})"]
)
def test_ctrl_c_leaves_nothing_behind(then: str) -> None:
    with starter(then) as process:
        mark = said_by(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)

    assert containers_of(mark) == []
