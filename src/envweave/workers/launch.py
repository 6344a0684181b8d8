"""What a worker process runs first.

A worker is exec'd, not forked: it shares nothing with who started it but what it is sent. The first
message is where to import from, so that it finds what its starter found.
"""

from __future__ import annotations

import signal

_BOOT = """\
# {title}
import json, socket, struct, sys
s = socket.socket(fileno=int(sys.argv[1]))
f = s.makefile("rb", buffering=0)
def read(n):
    b = b""
    while len(b) < n: b += f.read(n - len(b)) or sys.exit(1)
    return b
b = read(struct.unpack("<Q", read(8))[0])
f.close()
sys.path[:] = json.loads(b)
from {module} import main
main(s)
"""


def boot(title: str, module: str) -> str:
    """Return the program of a worker: it gives its socket to the `main` of a module.

    Args:
        title: What a list of processes shows.
        module: Imported once the paths are known.
    """
    return _BOOT.format(title=title, module=module)


def ending(code: int | None, pid: int) -> str:
    """Say how the worker process with this id ended, from its exit code."""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its worker process {pid} was killed by {name}"
    return f"its worker process {pid} ended with exit code {code}"
