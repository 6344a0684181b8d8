"""Containers that run code are removed however their owner ends; and isolation without walls."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from containers import BASE, containers_of, docker, own_containers

import envweave as ew
from envweave.codeact.executors.docker.messages import (
    MODULE,
    Failed,
    FromContainer,
    Open,
    Opened,
    RelayInfo,
)
from envweave.sandbox import Limits
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.framing import Frames

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]

STARTER = """
import sys, threading
import envweave as ew
from envweave.providers.cleanup import Owner
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


def is_running(name: str) -> bool:
    # Another process that starts a container may have removed it.
    return name in docker("ps", "--format", "{{.Names}}").split()


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
    while is_running(name) and time.monotonic() < ends_s:
        time.sleep(0.1)
    goes_on = is_running(name)
    with ew.create_codeact_env(executor="docker") as env:
        env.reset()

        assert not goes_on
        assert containers_of(mark) == []


@pytest.mark.parametrize("then", ["", "raise RuntimeError", "del env", "sys.exit(1)"])
def test_the_container_of_a_program_is_removed_when_it_exits(then: str) -> None:
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


@pytest.mark.parametrize("wait_s", [0.0, 0.3, 1.0])
def test_a_cancelled_reset_leaves_no_container(wait_s: float) -> None:
    async def leave_early() -> None:
        env = ew.make_async(ew.create_codeact_env, executor="docker")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_reset_for_ever(env), wait_s)
        await env.close()

    asyncio.run(leave_early())

    assert own_containers() == []


async def _reset_for_ever(env: Any) -> None:
    while True:
        await env.reset()
        await env.step({"code": "time.sleep(1)"})


NO_WALLS = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [
        {
            "names": ["landlock_create_ruleset", "unshare", "mount", "setns"],
            "action": "SCMP_ACT_ERRNO",
        }
    ],
}


@pytest.mark.parametrize(("isolation", "kind"), [("auto", Opened), ("landlock", Failed)])
def test_without_walls_the_container_isolates_unless_a_tier_was_requested(
    tmp_path: Path, isolation: Any, kind: type
) -> None:
    profile = tmp_path / "seccomp.json"
    profile.write_text(json.dumps(NO_WALLS))
    command = ["docker", "run", "--rm", "-i", "--security-opt", f"seccomp={profile}", BASE]
    program = subprocess.Popen(
        [*command, "python", "-I", "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    frames = Frames(1 << 20)

    def receive() -> Any:
        while (frame := frames.next()) is None:
            frames.feed(program.stdout.read1())
        return msgspec.msgpack.decode(frame, type=FromContainer)

    with program:
        hello = receive()
        limits = dataclasses.asdict(Limits())
        program.stdin.write(encode(Open(limits, [], None, [], "python", isolation)))
        program.stdin.flush()
        answer = receive()
        program.stdin.close()
        ended = program.wait(60)

    assert isinstance(hello, RelayInfo)
    assert isinstance(answer, kind)
    if isinstance(answer, Opened):
        assert answer.tier == "none"
        assert "does not support Sandbox" in answer.reasons[0]
    else:
        assert answer.kind == "IsolationError"
    assert ended == 0
