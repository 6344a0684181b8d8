"""A slice of CPython's own tests passes in a session, but for what the walls refuse.

Run as a script, with the tiers as arguments, it prints the figures.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

from envweave.sandbox import Limits, Sandbox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's"),
    pytest.mark.skipif(
        find_spec("test") is None or find_spec("test.test_grammar") is None,
        reason="this Python comes without its own tests, the package `test`",
    ),
]

SLICE = """
test_grammar test_class test_descr test_generators test_coroutines test_exceptions test_with
test_scope test_patma test_fstring
test_dict test_list test_set test_collections test_array test_memoryview test_struct test_enum
test_dataclasses test_typing test_functools test_itertools test_contextlib test_copy test_weakref
test_gc test_inspect test_traceback test_warnings
test_asyncio.test_tasks test_asyncio.test_futures test_asyncio.test_queues test_asyncio.test_locks
test_asyncio.test_timeouts test_asyncio.test_taskgroups test_asyncio.test_runners
test_threading test_context test_queue
test_io test_memoryio test_fileio test_tempfile test_zlib test_gzip test_sqlite3 test_mmap
test_pickle test_json test_csv test_re test_textwrap test_unicodedata test_hashlib
test_math test_decimal test_fractions test_statistics test_random
datetimetester.TestDate datetimetester.TestDateTime datetimetester.TestTimeZone test_signal
"""

LIMITS = Limits(
    timeout_s=300, memory_bytes=1 << 30, disk_bytes=256 << 20, open_files=256, processes=256
)

RUN = textwrap.dedent(
    """
    def flat(suite):
        for one in suite:
            yield from flat(one) if hasattr(one, "__iter__") else [one]

    def run(module, only=()):
        import io, os, unittest, warnings
        from test import support

        support.verbose, support.use_resources = 0, {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{module}")
            chosen = [test for test in flat(suite) if test.id() in only]
            # What failed before any test began is not among them: then all are run.
            if only and len(chosen) == len(only):
                suite = unittest.TestSuite(chosen)
            ran = unittest.TextTestRunner(io.StringIO(), verbosity=0).run(suite)
        failed = {}
        for test, text in ran.failures + ran.errors:
            failed.setdefault(test.id().partition(" ")[0], []).append(text[-3000:])
        failed.update((test.id(), ["passed unexpectedly"]) for test in ran.unexpectedSuccesses)
        return [ran.testsRun, len(ran.skipped), failed, os.getcwd()]
    """
)

_REFUSED = r"[\s\S]*PermissionError: \[Errno 1\] Operation not permitted"
WALLS = {
    "no processes": rf"(fork|_fork_exec|_spawnvef|posix_spawn)\b{_REFUSED}",
    "no sockets but pairs": rf"socket\.__init__{_REFUSED}",
    "no file longer than the disk": r"OSError: \[Errno 27\] File too large",
    "files outside cannot be changed": (
        r"(\[Errno 30\] Read-only file system|\[Errno 13\] Permission denied): '/"
    ),
}
"""What each wall is known by, in the text of an error."""


class Figures(NamedTuple):
    """The outcome of one module's tests in a session."""

    module: str
    run: int
    skipped: int
    refused: Counter[str]
    failed_outside_too: list[str]
    unexplained: dict[str, list[str]]

    @property
    def passed(self) -> int:
        """Those that passed."""
        failed = self.refused.total() + len(self.failed_outside_too) + len(self.unexplained)
        return self.run - self.skipped - failed


@pytest.mark.parametrize(
    "isolation", ["namespace"]
)  # the other tier only by hand: it takes as long again
def test_every_failure_inside_is_due_to_a_wall_or_occurs_outside_too(isolation):
    figures = measure(isolation)

    print(f"\n{isolation}\n{table(figures)}")
    assert {one.module: one.unexplained for one in figures if one.unexplained} == {}
    assert sum(one.passed for one in figures) > 0.95 * sum(one.run for one in figures)


def measure(isolation: Any) -> list[Figures]:
    with Sandbox(isolation=isolation, limits=LIMITS) as box:
        return [_figures_of(box, module) for module in SLICE.split()]


def _figures_of(box: Sandbox, module: str) -> Figures:
    with box.session() as session:
        result = session.run(f"{RUN}\nrun({module!r})")
    assert result.success, f"{module}: {result.exception_message}\n{result.traceback}"
    run, skipped, failed, work = result.return_value
    outside = _failing_outside(module, failed) if failed else set()
    refused: Counter[str] = Counter()
    unexplained = {}
    for test, texts in failed.items():
        if test in outside:
            continue
        # After its first error a test may fail again in its cleanup.
        wall = _wall_in("\n".join(texts).replace(work, "WORK"))
        if wall is not None:
            refused[wall] += 1
        else:
            unexplained[test] = texts
    return Figures(module, run, skipped, refused, sorted(outside), unexplained)


def _wall_in(text: str) -> str | None:
    return next((wall for wall, known in WALLS.items() if re.search(known, text)), None)


def _failing_outside(module: str, failed: dict[str, list[str]]) -> set[str]:
    """Return which of these tests fail in a plain process as well."""
    with tempfile.TemporaryDirectory() as folder:
        code = f"{RUN}\nimport json, sys\nprint(json.dumps(run(sys.argv[1], sys.argv[2:])))"
        ran = subprocess.run(
            [sys.executable, "-P", "-B", "-c", code, module, *failed],
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=300,
            check=True,
        )
    return failed.keys() & json.loads(ran.stdout.splitlines()[-1])[2].keys()


def table(figures: list[Figures]) -> str:
    rows = [
        (one.module, one.run, one.passed, one.skipped, one.refused.total(),
         len(one.failed_outside_too), len(one.unexplained))
        for one in figures
    ]  # fmt: skip
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    heading = ("module", "run", "passed", "skipped", "refused", "fail outside too", "unexplained")
    lines = [f"{row[0]:34}" + "".join(f"{cell:>{len(name) + 2}}" for cell, name in
             zip(row[1:], heading[1:], strict=True)) for row in (heading, *rows)]  # fmt: skip
    walls = sum((one.refused for one in figures), Counter())
    return "\n".join([*lines, *(f"{count:6} {wall}" for wall, count in walls.most_common())])


if __name__ == "__main__":
    for tier in sys.argv[1:] or ["namespace"]:
        measured = measure(tier)
        print(tier, table(measured), sep="\n")
        print(json.dumps({k: v for one in measured for k, v in one.unexplained.items()}, indent=1))
