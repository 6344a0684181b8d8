"""A session that was kept warm has run a cell, and shows nothing of it."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from envweave.sandbox import Sandbox

pytestmark = pytest.mark.slow  # starts many sandbox sessions

TIMEOUT_S = 30.0

STATE = """
import gc, inspect, linecache, os, random, signal, sys, threading, warnings
def here():
    return inspect.currentframe().f_code.co_filename
{
    "names": list(globals()),
    "cell": here(),
    "sources": [name for name in linecache.cache if name.startswith("<cell")],
    "source": inspect.getsource(here),
    "files": sorted(os.listdir(".")) + sorted(os.listdir("tmp")),
    "output": [os.lseek(number, 0, 1) for number in (1, 2)],
    "modules": sorted(name for name in sys.modules if not name.startswith("encodings")),
    "threads": threading.active_count(),
    "hooks": [sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.exc_info()],
    "last": [hasattr(sys, "last_value"), hasattr(sys, "last_traceback")],
    "filters": len(warnings.filters),
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "collects": gc.isenabled(),
    "drawn": [random.random(), random.gauss(0, 1), random.getrandbits(70)],
}
"""


def wait_until_warm(box: Sandbox, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(box._factory._warm) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(params=["namespace", "landlock", "none"])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(isolation=request.param, warm=2) as made:
        made.session().close()  # one that has run nothing, and starts the filling
        wait_until_warm(made, 2)
        yield made


def state(session: Any) -> Any:
    result = session.run(STATE)
    assert result.success, result.traceback
    assert (result.stdout, result.stderr, result.limits_hit) == ("", "", ())
    return result.return_value


def test_the_state_of_a_warm_session_is_that_of_a_fresh_one(box: Sandbox) -> None:
    with box.session(seed=5) as warm, Sandbox(isolation=box.tier.name) as other:
        with other.session(seed=5) as fresh, other.session(seed=5) as second:
            expected = state(fresh)
            assert state(second) == expected
        found = state(warm)

    assert found == expected


def test_warm_sessions_without_a_seed_draw_different_numbers(box: Sandbox) -> None:
    with box.session() as one, box.session() as two:
        drawn = [each.run("import random; random.random()").return_value for each in (one, two)]

    assert drawn[0] != drawn[1]


def test_names_and_variables_of_the_warm_up_are_not_defined(box: Sandbox) -> None:
    with box.session() as session:
        missing = session.run("_")
        first = session.run("1 / 0")

    assert missing.exception_type == "NameError"
    assert 'File "<cell 1>"' in missing.traceback
    assert 'File "<cell 2>"' in first.traceback


def test_a_warm_session_has_its_tools_and_its_whole_output(box: Sandbox) -> None:
    with box.session(tools={"double": lambda value: 2 * value}) as session:
        result = session.run("print('a' * 100)\ndouble(4)")

    assert result.return_value == 8
    assert result.stdout == "a" * 100 + "\n"
    assert [call.name for call in result.tool_calls] == ["double"]


def test_close_ends_the_thread_that_keeps_sessions_warm() -> None:
    before = {thread.name for thread in threading.enumerate()}
    box = Sandbox(warm=1)
    box.session().close()

    box.close()

    after = {thread.name for thread in threading.enumerate()}
    assert "sandbox-warm" not in after - before


def test_sessions_are_kept_warm_again_after_a_template_was_lost() -> None:
    with Sandbox(warm=1) as box:
        box.session().close()
        wait_until_warm(box, 1)
        os.kill(box.template_pids()[0], signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT_S
        while box._factory._warm[0].is_usable():  # it ends a moment after its template
            assert time.monotonic() < deadline
            time.sleep(0.005)

        with box.session() as session:
            assert session.run("1 + 1").return_value == 2
        box.session().close()
        wait_until_warm(box, 1)


def test_sessions_are_kept_warm_again_after_none_could_be_made_for_a_while() -> None:
    before = set(threading.enumerate())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Sandbox(warm=1) as box:
        box.session().close()
        wait_until_warm(box, 1)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))  # no session can be made
        try:
            taken = box.session()
            for thread in set(threading.enumerate()) - before:
                if thread.name == "sandbox-warm":
                    thread.join(TIMEOUT_S)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        taken.close()
        assert not box._factory._warm

        with box.session() as session:
            assert session.run("1 + 1").return_value == 2
        wait_until_warm(box, 1)
