"""A simulated host without Linux, and the page of the guide for such hosts.

What Linux alone has is taken away from it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/guides/code-agents.md").read_text()
PROGRAM = r'^```python title="([^"]+)"\n(.*?)^```\n\n```text\n(.*?)^```'
PROGRAMS = {
    name: (code, printed)
    for name, code, printed in re.findall(PROGRAM, PAGE, re.MULTILINE | re.DOTALL)
}

FOREIGN = """
import asyncio, ctypes, os, resource, select, signal, socket, subprocess, sys
for module, names in (
    (os, ["pidfd_open", "sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd",
          "pipe2", "splice", "O_PATH", "O_TMPFILE", "P_PIDFD", "getrandom", "setxattr"]),
    (resource, ["RLIMIT_MSGQUEUE", "RLIMIT_SIGPENDING", "RLIMIT_NICE", "RLIMIT_RTPRIO", "prlimit"]),
    (select, ["epoll"]),
    (signal, ["pidfd_send_signal", "SIGRTMAX", "SIGRTMIN"]),
    (socket, ["MSG_NOSIGNAL", "SO_PASSCRED", "SO_PEERCRED", "SCM_CREDENTIALS", "AF_PACKET",
              "SOCK_CLOEXEC", "SOCK_NONBLOCK"]),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import envweave as ew
"""


def output_of(code: str) -> str:
    """Return what such a host prints."""
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow  # starts Python anew
def test_on_macos_the_error_recommends_docker() -> None:
    code = """
from envweave.errors import IsolationError
from envweave.sandbox import Sandbox
sys.platform = "darwin"
for make in (ew.create_codeact_env, Sandbox):
    try:
        make()
    except IsolationError as error:
        print(error)
"""

    output = output_of(code).splitlines()

    assert len(output) == 2
    assert all("`create_codeact_env(executor='docker')`" in one for one in output)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("images")
def test_code_runs_in_a_container_without_linux_only_features() -> None:
    code = """
with ew.create_codeact_env(executor="docker", tools={"add": lambda a, b: a + b}) as env:
    env.reset()
    print(env.step({"code": "add(20, 22)"}).execution_result.return_value)
"""

    assert output_of(code) == "42"


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("name", ["in_docker.py", "in_an_image.py"])
def test_a_program_of_the_guide_prints_the_documented_output(name: str) -> None:
    code, printed = PROGRAMS[name]

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, printed), done.stderr
