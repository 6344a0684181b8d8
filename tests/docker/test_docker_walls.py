"""Code that has taken over the server in a container can do very little."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from containers import ECHO, inspect, need_images

from envweave import LocalDockerProvider

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

NEW_USER = 0x10000000
LIBC = (
    "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
    "why = lambda: os.strerror(ctypes.get_errno())\n"
)

ATTACKS = {
    "become root": ("import os; os.setuid(0)", "PermissionError"),
    "mount a file system": (
        f"{LIBC}libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 or exit(why())",
        "Operation not permitted",
    ),
    "make a user namespace, where it would be root": (
        f"{LIBC}libc.unshare({NEW_USER}) == 0 or exit(why())",
        "Operation not permitted",
    ),
    "load a module into the kernel": (
        f"{LIBC}libc.init_module(b'x', 1, b'') == 0 or exit(why())",
        "Operation not permitted",
    ),
    "read raw packets": (
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "PermissionError",
    ),
    "read the memory of the machine": ("open('/dev/mem', 'rb')", "FileNotFoundError"),
    "read the disk of the machine": (
        "import os; os.mknod('/tmp/disk', 0o60600, os.makedev(252, 0))",
        "PermissionError",
    ),
    "talk to the engine": (
        "import socket; socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
        "FileNotFoundError",
    ),
    "change its own program": (
        "open('/opt/envweave/lib/python3.11/site-packages/envweave/__init__.py', 'a')",
        "Read-only file system",
    ),
    "change a setting of the kernel": (
        "open('/proc/sys/kernel/hostname', 'w').write('mine')",
        "Read-only file system",
    ),
    "write to a cgroup": (
        "import glob; open(next(iter(glob.glob('/sys/fs/cgroup/**/tasks', recursive=True)\n"
        " + glob.glob('/sys/fs/cgroup/cgroup.procs'))), 'w')",
        "Error",
    ),
    "run a program from /tmp": (
        "import os, shutil; shutil.copy('/bin/true', '/tmp/t'); os.chmod('/tmp/t', 0o755)\n"
        "os.execv('/tmp/t', ['t'])",
        "PermissionError",
    ),
    "fill the disk": (
        "import os; f = open('/tmp/large', 'wb')\n"
        "try:\n for _ in range(64): f.write(bytes(2**20)); f.flush()\n"
        "finally: os.unlink('/tmp/large')",  # others run in this container too
        "No space left on device",
    ),
    "fill the folder of its socket": ("open('/run/envweave/large', 'w')", "Permission denied"),
    "start processes without end": (
        "import os, time\npids = []\ntry:\n"
        "    for _ in range(200):\n"
        "        pid = os.fork()\n"
        "        pid == 0 and (time.sleep(20), os._exit(0))\n"
        "        pids.append(pid)\n"
        "finally:\n    [os.kill(pid, 9) for pid in pids]",
        "BlockingIOError",
    ),
    "reach the network": (
        "import socket; socket.create_connection(('1.1.1.1', 53), 5)",
        "Network is unreachable",
    ),
    "reach this machine": (
        "import socket; socket.create_connection(('172.17.0.1', 22), 5)",
        "Network is unreachable",
    ),
}


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """A container without a network, with little of everything."""
    need_images()
    provider = LocalDockerProvider(network="none", pids=64, tmp_size="16m", memory="512m")
    try:
        provider.wait_for_ready(provider.start_container(ECHO), 60)
        yield str(provider.container)
    finally:
        provider.stop_container()


@pytest.mark.parametrize("attack", ATTACKS)
def test_code_inside_the_container_cannot(container: str, attack: str) -> None:
    code, expected = ATTACKS[attack]

    done = subprocess.run(
        ["docker", "exec", container, "python", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert expected in done.stderr
    assert inspect(container)["State"]["Running"]
