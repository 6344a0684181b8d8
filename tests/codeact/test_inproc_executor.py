"""Behavior that is specific to the `inproc` executor."""

from __future__ import annotations

import linecache
import logging
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import codeact_environments
import pytest
from codeact_environments import QUICK, CodeClient, coder, open_client

import envweave as ew

WAITS_IN_C = "import codeact_environments\ncodeact_environments.GATE.wait()"


@pytest.fixture
def way() -> Iterator[CodeClient]:
    with open_client("direct", executor="inproc", files=True, limits=QUICK) as found:
        found.reset(seed=1)
        yield found


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    codeact_environments.GATE.clear()
    yield codeact_environments.GATE
    codeact_environments.GATE.set()


@pytest.mark.slow  # starts several sandboxes
def test_code_that_blocks_in_c_is_abandoned_and_the_agent_is_to_blame(
    gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with (
        caplog.at_level(logging.WARNING, "envweave.codeact"),
        open_client("make", executor="inproc", limits=QUICK, fatal_reward=-1.0) as way,
    ):
        way.reset()
        last = way.step(WAITS_IN_C)
        (left,) = set(threading.enumerate()) - before
        way.reset()
        after = way.step("print('new'); 1 + 1")
    gate.set()
    left.join(20)

    assert last.end is not None
    assert (last.end["reason"], last.end["blame"]) == ("timeout", "agent")
    assert (last.limits_hit, last.exit_code, last.reward) == (("time",), 124, -1.0)
    assert last.execution.session_ended
    assert "A thread cannot be killed, so it was left behind." in last.execution.exception_message
    assert [one.getMessage() for one in caplog.records] == [
        "code did not stop when it was interrupted; its thread is left behind"
    ]
    assert (after.value, after.execution.stdout) == (2, "new\n")
    assert not left.is_alive()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # starts several sandboxes
def test_the_output_of_an_abandoned_thread_is_dropped(
    gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout
    known = set(threading.enumerate())
    with open_client("direct", executor="inproc", limits=QUICK) as way:
        way.reset()
        way.step(f"try:\n    {WAITS_IN_C.replace(chr(10), '; ')}\nfinally:\n    print('late')")
        (left,) = set(threading.enumerate()) - known
        way.reset()
        after = way.step("print('mine')")
        print("the host's")
        gate.set()
        left.join(20)

    assert not left.is_alive()
    assert after.execution.stdout == "mine\n"
    assert capsys.readouterr().out == "the host's\n"
    assert sys.stdout is before


def test_code_that_catches_the_interrupt_and_ends_has_failed(way: CodeClient) -> None:
    step = way.step("try:\n    while True: sum(range(10**6))\nexcept BaseException:\n    kept = 1")
    after = way.step("kept")

    assert step.limits_hit == ("time",)
    assert step.execution.exception_message.endswith("and caught the interrupt.")
    assert after.value == 1


@pytest.mark.slow  # starts several sandboxes
def test_interrupts_at_any_moment_keep_the_episode_intact() -> None:
    chance = random.Random(0)
    with open_client(
        "direct", executor="inproc", limits={"timeout_s": 0.004, "grace_s": 20.0}
    ) as way:
        way.reset()
        way.step("def spin(n):\n    for _ in range(n): add(1, 1) if n % 3 else print(n)")
        way.step("kept = 5")
        steps = [way.step(f"spin({chance.randint(1, 60)})") for _ in range(150)]
        left = [way.step("kept") for _ in range(20)]

    hit = [step.limits_hit for step in steps]
    assert all(step.execution.success or "time" in step.limits_hit for step in steps)
    assert ("time",) in hit
    assert () in hit
    assert {step.value for step in left if step.execution.success} == {5}


def test_output_of_episodes_that_run_at_the_same_time_is_kept_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    met = threading.Barrier(3, timeout=20)

    def meet() -> None:
        met.wait()

    def play(mark: str) -> str:
        env = ew.create_codeact_env(executor="inproc", tools=[meet])
        try:
            env.reset()
            code = f"for i in range(3):\n    meet()\n    print('{mark}', i)"
            return str(env.step({"code": code}).stdout)
        finally:
            env.close()

    with ThreadPoolExecutor(2) as threads:
        execution = [threads.submit(play, mark) for mark in "ab"]
        for i in range(3):
            met.wait()
            print("host", i)
        shown = [one.result(20) for one in execution]

    assert shown == ["a 0\na 1\na 2\n", "b 0\nb 1\nb 2\n"]
    assert capsys.readouterr().out == "host 0\nhost 1\nhost 2\n"


def test_streams_that_code_puts_into_sys_are_removed_after_the_step(way: CodeClient) -> None:
    before = sys.stdout, sys.stderr

    way.step("import io, sys\nsys.stdout = sys.stderr = io.StringIO()\nprint('lost')")
    after = way.step("import sys; print('seen'); print('too', file=sys.stderr)")

    assert (after.execution.stdout, after.execution.stderr) == ("seen\n", "too\n")
    assert (sys.stdout, sys.stderr) == before


def test_streams_are_like_real_ones(way: CodeClient) -> None:
    step = way.step(
        "import sys\n"
        "sys.stdout.buffer.write('ä'.encode()[:1]); sys.stdout.buffer.write('ä'.encode()[1:])\n"
        "sys.stdout.writelines(['a', 'b']); sys.stdout.flush(); sys.stdout.reconfigure()\n"
        "print('\\ud800', sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.writable())\n"
        "try: sys.stdout.write(b'bytes')\n"
        "except TypeError as error: print(error, file=sys.stderr)"
    )

    assert step.execution.stdout == "äab\\ud800 utf-8 False True\n"
    assert step.execution.stderr == "write() argument must be str, not bytes\n"


def test_a_work_folder_over_the_disk_limit_ends_the_episode() -> None:
    limits = {"timeout_s": 20.0, "grace_s": 5.0, "disk_bytes": 256 << 10}
    with open_client("make", executor="inproc", files=True, limits=limits) as way:
        way.reset()
        last = way.step("file_write('big', 'x' * (1 << 20))\nwhile True: time.sleep(0.01)")
        way.reset()
        after = way.step("file_list()")

    assert last.limits_hit == ("disk",)
    assert last.end is not None
    assert last.end["blame"] == "agent"
    assert after.value == ["tmp/"]


@pytest.mark.slow  # waits for a deadline
def test_coroutines_run_at_the_top_level_and_are_interrupted(way: CodeClient) -> None:
    first = way.step(
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 4\nawait f()"
    )
    late = way.step("await asyncio.sleep(60)")
    after = way.step("await f() + await f()")

    assert first.value == 4
    assert (late.limits_hit, late.done) == (("time",), False)
    assert after.value == 8


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("input('name? ')", "EOFError", "EOF when reading a line"),
        ("def f(): f()\nf()", "RecursionError", "maximum recursion depth exceeded"),
        ("'\\ud800'.encode()", "UnicodeEncodeError", "'utf-8' codec can't encode"),
    ],
)
def test_every_exception_is_an_observation(
    way: CodeClient, code: str, kind: str, message: str
) -> None:
    step = way.step(code)
    after = way.step("1 + 1")

    assert step.execution.exception_type == kind
    assert step.execution.exception_message.startswith(message)
    assert after.value == 2


def test_future_imports_apply_to_later_cells(way: CodeClient) -> None:
    way.step("from __future__ import annotations")

    step = way.step("def f(a: undefined): pass\nf.__annotations__")

    assert step.value == {"a": "undefined"}


def test_tools_have_docs_and_refuse_arguments_that_are_not_plain_data(way: CodeClient) -> None:
    execution = way.step("import inspect\nadd.__doc__, str(inspect.signature(add)), add.__name__")
    refused = way.step("add(object(), 1)")
    held = way.step(
        "import threading\nbox = []\n"
        "thread = threading.Thread(target=lambda: box.append(add(2, 3)))\n"
        "thread.start(); thread.join(); box"
    )

    assert execution.value == ("Return the sum.", "(a: int, b: int) -> int", "add")
    assert refused.execution.exception_type == "TypeError"
    assert "not plain data" in refused.execution.exception_message
    assert held.value == [5]


def test_threads_may_call_tools_after_their_step_ended(way: CodeClient) -> None:
    way.step(
        "import threading\nbox = []\n"
        "def call(n):\n"
        "    for _ in range(5):\n"
        "        try: box.append(add(n, 1))\n"
        "        except ToolError as error: box.append(str(error))\n"
    )
    for n in range(20):
        way.step(f"thread = threading.Thread(target=call, args=({n},)); thread.start(); add(1, 1)")
    step = way.step("thread.join(); add(1, 2)")
    execution = way.step("box")

    refused = "add() can be called only while the session runs code."
    assert step.value == 3
    assert set(execution.value) <= {*range(1, 21), refused}


def test_sources_of_past_episodes_are_released() -> None:
    def cells() -> int:
        return sum(name.startswith("<cell ") for name in linecache.cache)

    before = cells()
    env = coder(executor="inproc")
    for _ in range(5):
        env.reset()
        env.step({"code": "1 / 0"})
    env.close()

    assert cells() == before
