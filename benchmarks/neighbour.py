"""What a caller sees of code that abuses its sandbox, and what a neighbouring session notices.

    ./dev run python benchmarks/neighbour.py [--isolation namespace]

For each abuse it prints the outcome of the run, and how long a step of another session of the same
sandbox took meanwhile: the median and the slowest of a hundred.
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
    "fork bomb that goes on": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ),
    "memory bomb": "x = []\nwhile True: x.append(bytearray(10 << 20))",
    "memory bomb that goes on": (
        "x = []\nwhile True:\n    try: x.append(bytearray(10 << 20))\n"
        "    except MemoryError: x.clear()"
    ),
    "disk fill": "with open('f', 'wb') as f:\n    while True: f.write(b'x' * (1 << 20))",
    "descriptors": "import os\nopened = []\nwhile True: opened.append(os.dup(0))",
    "endless output": "while True: print('x' * 1000)",
    "endless output by descriptor": (
        "import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass"
    ),
    "a sleeping finally": (
        "import time\ntry:\n    while True: time.sleep(.001)\nfinally: time.sleep(1e6)"
    ),
    "exceptions swallowed": (
        "import time\nwhile True:\n    try:\n        while True: time.sleep(.001)\n"
        "    except BaseException: pass"
    ),
    "a crash": "import ctypes; ctypes.string_at(0)",
    "exit": "import os; os._exit(0)",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--only", action="append", choices=list(ABUSES))
    given = parser.parse_args()
    with Sandbox(limits=LIMITS, isolation=given.isolation) as box, box.session() as neighbour:
        print(f"tier {box.tier}; a neighbour's step, median and slowest, while code …\n")
        neighbour.run("x = 1")
        for name in given.only or ABUSES:
            with box.session() as session:
                result, steps_s = step_beside(neighbour, session, ABUSES[name])
            median, slowest = statistics.median(steps_s) * 1e6, max(steps_s) * 1e6
            print(f"{name:30} {median:9.0f} µs {slowest:9.0f} µs   {outcome(result)}", flush=True)


def step_beside(
    neighbour: Session, session: Session, code: str
) -> tuple[ExecutionResult, list[float]]:
    """Run code in one session while another is stepped; return its result and the other's times."""
    results: list[ExecutionResult] = []
    abusing = threading.Thread(target=lambda: results.append(session.run(code)))
    abusing.start()
    steps_s = []
    while abusing.is_alive() or len(steps_s) < 20:
        start_s = time.perf_counter()
        assert neighbour.run("x + 1").return_value == 2
        steps_s.append(time.perf_counter() - start_s)
        time.sleep(0.01)
    abusing.join()
    return results[0], steps_s


def outcome(result: ExecutionResult) -> str:
    """Say in a line what the caller sees."""
    parts = [result.exception_type or "success"]
    if result.limits_hit:
        parts.append(f"limits_hit={','.join(result.limits_hit)}")
    parts.append("session ended" if result.session_ended else "session lives")
    return f"{'; '.join(parts)}; {result.duration_s:.2f} s"


if __name__ == "__main__":
    main()
