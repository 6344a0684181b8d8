"""Code that abuses its sandbox, and how much another session of the same sandbox slows down.

    benchmarks/run noisy-neighbor
    benchmarks/run noisy-neighbor --isolation landlock --only "fork bomb"

For each abuse it prints the median and the slowest step of the other session meanwhile, and the
outcome of the abusive code.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

from envweave.sandbox import ExecutionResult, Limits, Sandbox, Session

LIMITS = Limits(timeout_s=2, memory_bytes=512 << 20)

ABUSES = {
    "nothing": "import time; time.sleep(.5)",
    "while True": "while True: pass",
    "eight threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(8): threading.Thread(target=spin, daemon=True).start()\nspin()"
    ),
    "10**10**8": "10**10**8",
    "fork bomb": "import os\nwhile True: os.fork()",
    "persistent fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ),
    "memory bomb": "x = []\nwhile True: x.append(bytearray(10 << 20))",
    "persistent memory bomb": (
        "x = []\nwhile True:\n    try: x.append(bytearray(10 << 20))\n"
        "    except MemoryError: x.clear()"
    ),
    "disk fill": "with open('f', 'wb') as f:\n    while True: f.write(b'x' * (1 << 20))",
    "open descriptors": "import os\nopened = []\nwhile True: opened.append(os.dup(0))",
    "endless output": "while True: print('x' * 1000)",
    "endless output by descriptor": (
        "import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass"
    ),
    "finally block that sleeps": (
        "import time\ntry:\n    while True: time.sleep(.001)\nfinally: time.sleep(1e6)"
    ),
    "swallowed exceptions": (
        "import time\nwhile True:\n    try:\n        while True: time.sleep(.001)\n"
        "    except BaseException: pass"
    ),
    "crash": "import ctypes; ctypes.string_at(0)",
    "exit": "import os; os._exit(0)",
}


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run noisy-neighbor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--isolation", default="auto", help="the isolation tier (default: auto)")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(ABUSES),
        metavar="ABUSE",
        help=f"can be repeated; one of: {', '.join(ABUSES)}",
    )
    options = parser.parse_args(arguments)
    with Sandbox(limits=LIMITS, isolation=options.isolation) as sandbox:
        print(f"isolation: {sandbox.tier}\n")
        print(f"{'abuse':30} {'median step':>12} {'slowest':>12}   outcome")
        _run(sandbox, options.only or list(ABUSES))
    return 0


def _run(sandbox: Sandbox, abuses: list[str]) -> None:
    with sandbox.session() as neighbor:
        neighbor.run("x = 1")
        for name in abuses:
            with sandbox.session() as session:
                result, steps_s = step_beside(neighbor, session, ABUSES[name])
            median, slowest = statistics.median(steps_s) * 1e6, max(steps_s) * 1e6
            print(f"{name:30} {median:9.0f} µs {slowest:9.0f} µs   {outcome(result)}", flush=True)


def step_beside(
    neighbor: Session, session: Session, code: str
) -> tuple[ExecutionResult, list[float]]:
    """Run code in a session while its neighbor is stepped; return the result and those times."""
    results: list[ExecutionResult] = []
    thread = threading.Thread(target=lambda: results.append(session.run(code)))
    thread.start()
    steps_s = []
    while thread.is_alive() or len(steps_s) < 20:
        start_s = time.perf_counter()
        assert neighbor.run("x + 1").return_value == 2
        steps_s.append(time.perf_counter() - start_s)
        time.sleep(0.01)
    thread.join()
    return results[0], steps_s


def outcome(result: ExecutionResult) -> str:
    """Return what the caller sees, on one line."""
    parts = [result.exception_type or "success"]
    if result.limits_hit:
        parts.append(f"limits_hit={','.join(result.limits_hit)}")
    parts.append("session ended" if result.session_ended else "session continues")
    return f"{'; '.join(parts)}; {result.duration_s:.2f} s"
