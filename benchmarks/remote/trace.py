"""Which files, functions and lines one remote step passes through.

    benchmarks/run remote --trace

Client and server run in one process, each in a thread of its own, and both are traced for one
ordinary step of a session and for one of a vector. A line counts once, however often it runs.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import envweave
from benchmarks.measurement.tables import Table, show
from benchmarks.remote.libraries import ACTION

WARM_UP = 300
ROWS = 64
SOURCE = Path(envweave.__file__).parent
_COMPILED = "<step:"  # the name of a compiled step begins with this
_START_S = 20.0

Line = tuple[str, int]


class Trace:
    """What was visited while it was recording.

    Attributes:
        calls: The number of calls by file and function.
        lines: The lines that ran.
        others: The number of calls of functions that are not ours.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.lines: set[Line] = set()
        self.others = 0
        self.is_recording = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        """Record an event, as `threading.settrace` calls it."""
        if not self.is_recording:
            return None
        file = _our_file(frame.f_code.co_filename)
        if file is None:
            self.others += event == "call"
            return None
        if event == "call":
            self.calls[file, frame.f_code.co_qualname] += 1
        elif event == "line":
            self.lines.add((file, frame.f_lineno))
        return self


def _our_file(name: str) -> str | None:
    if name.startswith(_COMPILED):
        return "session/compiled_step.py"
    path = Path(name)
    return str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else None


@contextmanager
def serving() -> Iterator[str]:
    """Serve the counter in threads of this process; yield the URL."""
    from benchmarks.remote.envweave_env import Count
    from envweave.registry import EnvSpec
    from envweave.server import event_loop
    from envweave.server.app import AppState
    from envweave.server.listen import listen
    from envweave.server.options import ServerOptions
    from envweave.server.run import Serving
    from envweave.server.runtime import threaded_runner
    from envweave.server.runtime.local import LocalRuntime

    # A step that is traced takes as long as one that hangs; it must not be treated like that.
    event_loop.TICK_S = threaded_runner.SLICE_S = 10.0
    options = ServerOptions()
    state = AppState(lambda: LocalRuntime(EnvSpec("count", Count), {}, options), options)
    urls: list[str] = []
    is_ready = threading.Event()

    def on_ready(url: str) -> None:
        urls.append(url)
        is_ready.set()

    server = Serving(state, listen("127.0.0.1", 0), on_ready)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert is_ready.wait(_START_S)
        yield urls[0]
    finally:
        server.stop()
        thread.join(_START_S)


def trace_step(num_envs: int | None) -> Trace:
    """Return what one step visits: of a session, or of a vector."""
    trace = Trace()
    threading.settrace(trace)  # for the threads of the server, which start now
    try:
        with serving() as url:
            if num_envs is None:
                env: Any = envweave.make(url)
                action: Any = ACTION
            else:
                env, action = envweave.make_vector(url, num_envs=num_envs), [ACTION] * num_envs
            with env:
                env.reset()
                for _ in range(WARM_UP):
                    env.step(action)
                sys.settrace(trace)
                trace.is_recording = True
                env.step(action)
                trace.is_recording = False
                sys.settrace(None)
    finally:
        threading.settrace(None)
        sys.settrace(None)
    return trace


def tables(traces: dict[str, Trace]) -> list[Table]:
    """Return the traces as tables."""
    totals = [
        (
            name,
            str(len({file for file, _ in trace.calls})),
            str(len(trace.calls)),
            str(trace.calls.total()),
            str(len(trace.lines)),
            str(trace.others),
        )
        for name, trace in traces.items()
    ]
    files: list[tuple[str, ...]] = []
    for file in sorted({file for trace in traces.values() for file, _ in trace.calls}):
        cells = []
        for trace in traces.values():
            calls = sum(count for (one, _), count in trace.calls.items() if one == file)
            lines = sum(one == file for one, _ in trace.lines)
            cells += [str(calls), str(lines)]
        files.append((file, *cells))
    columns = [f">{what}, {name}" for name in traces for what in ("calls", "lines")]
    return [
        Table(
            "What one remote step visits, client and server",
            ("step", ">files", ">functions", ">calls", ">lines", ">calls of other libraries"),
            totals,
        ),
        Table("By file", ("file", *columns), files),
    ]


def main() -> int:
    """Print the traces."""
    traces = {"one session": trace_step(None), f"vector of {ROWS}": trace_step(ROWS)}
    for table in tables(traces):
        show(table)
    return 0
