"""Capabilities: none is left, none can be regained, and the process dies with its parent."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")


def run(code: str, **options) -> subprocess.CompletedProcess:
    program = (
        f"from envweave.sandbox.walls import capabilities, kernel\nimport os, sys, time\n{code}"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, **options
    )


def status_of(process: subprocess.CompletedProcess) -> dict[str, str]:
    assert process.returncode == 0, process.stderr
    return dict(re.findall(r"^(\w+):\s+(.*)$", process.stdout, re.M))


SHOW = "print(open('/proc/self/status').read())\n"
NONE = "0" * 16


def test_no_capability_is_left_in_any_relevant_set():
    code = f"capabilities.no_new_privileges()\ncapabilities.drop_all()\n{SHOW}"

    status = status_of(run(code))

    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [NONE] * 4
    assert status["NoNewPrivs"] == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to keep")
def test_no_program_regains_a_capability_even_with_new_privileges():
    code = f"""
capabilities.drop_all()
os.execv(sys.executable, [sys.executable, "-c", {SHOW!r}])
"""

    status = status_of(run(code))

    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [NONE] * 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to keep")
def test_root_without_capabilities_has_no_rights():
    code = """
capabilities.drop_all()
for act in (
    lambda: os.setuid(1), lambda: os.chroot("/"), lambda: os.nice(-1),
    lambda: kernel.call("prctl", 28, 0, 0, 0, 0), lambda: kernel.call("sethostname", b"x", 1),
):
    try:
        act()
    except OSError as error:
        print(error.errno)
"""

    assert run(code).stdout.split() == ["1"] * 5


def test_dropping_twice_is_allowed():
    assert run("capabilities.drop_all()\ncapabilities.drop_all()").returncode == 0


def test_capabilities_of_a_new_user_namespace_are_dropped():
    code = f"""
capabilities.no_new_privileges()
capabilities.drop_all()
try:
    kernel.unshare(kernel.NEW_USERS)
except OSError:
    sys.exit(77)
assert capabilities.held()
capabilities.drop_effective()
{SHOW}
"""
    process = run(code)
    if process.returncode == 77:
        pytest.skip("user namespaces are shut here")

    status = status_of(process)

    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [NONE] * 4


def test_a_process_dies_with_its_parent():
    code = """
reading, writing = os.pipe()
if os.fork() == 0:
    capabilities.die_with_parent()
    os.write(writing, b"x")
    time.sleep(20)
    print("survived")
os.read(reading, 1)
os._exit(0)
"""

    # The child holds the output open, so this returns only when it is gone too.
    assert run(code).stdout == ""
