"""Code in this process behaves as code in the sandbox does, as near as it can."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codeact_worlds import QUICK, ROADS, Road, coder, road

import envweave as ew
from envweave.errors import BusyError, MissingExtraError


@pytest.fixture(params=["inproc", "smolagents"])
def executor(request: pytest.FixtureRequest) -> str:
    if request.param == "smolagents":
        pytest.importorskip("smolagents")
    name: str = request.param
    return name


@pytest.fixture
def way(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Road]:
    """Return the direct road to an environment, which leaves neither threads nor files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with road("direct", executor=executor, files=True, limits=QUICK) as found:
        found.reset(seed=1)
        yield found
    assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == []


def test_names_last_for_an_episode_and_no_longer(way: Road) -> None:
    way.step("x = 20\ndef double(n):\n    return 2 * n")
    during = way.step("double(x) + 2")
    way.reset()
    after = way.step("x")

    assert during.value == 42
    assert after.told.exception_type in ("NameError", "InterpreterError")
    assert not after.done


def test_the_last_expression_is_the_value_and_nothing_else_is(way: Road) -> None:
    steps = [way.step(code) for code in ("1 + 1", "x = 1", "x", "None", "", "math.sqrt(16)")]

    assert [step.value for step in steps] == [2, None, 1, None, None, 4.0]
    assert [step.told.return_repr for step in steps] == ["2", None, "1", None, None, "4.0"]


def test_values_are_plain_data_or_only_shown(way: Road) -> None:
    plain = way.step("[1, (2, 'three'), {4}, {'five': None}]")
    other = way.step("class Thing:\n    def __repr__(self):\n        return 'a thing'\nThing()")

    assert plain.value == [1, (2, "three"), {4}, {"five": None}]
    assert other.value is None
    assert other.told.return_repr == "a thing"
    assert other.told.success


def test_a_value_is_a_copy_that_the_code_cannot_change(way: Road) -> None:
    first = way.step("mine = [1]\nmine").value
    way.step("mine.append(2)")
    first.append(3)

    assert first == [1, 3]
    assert way.step("mine").value == [1, 2]


def test_a_traceback_shows_the_lines_of_the_code_and_none_of_ours(way: Road) -> None:
    way.step("def divide(a):\n    b = 0\n    return a / b")
    step = way.step("n = 1\ndivide(n)")

    lines = [line.strip() for line in step.told.traceback.splitlines() if "^" not in line]
    assert lines == [
        "Traceback (most recent call last):",
        'File "<cell 3>", line 2, in <module>',
        "divide(n)",
        'File "<cell 2>", line 3, in divide',
        "return a / b",
        "ZeroDivisionError: division by zero",
    ]
    assert step.told.exception_type == "ZeroDivisionError"
    assert step.told.exception_message == "division by zero"
    assert step.exit_code == 1


def test_code_that_is_no_python_is_an_observation(way: Road) -> None:
    step = way.step("1 +")

    assert step.told.exception_type == "SyntaxError"
    assert step.told.traceback.splitlines()[0] == '  File "<cell 2>", line 1'


def test_what_code_prints_is_kept_up_to_the_limit(
    executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    with road("direct", executor=executor, limits={**QUICK, "output_bytes": 1000}) as way:
        way.reset()
        short = way.step("print('some', 'text')")
        long = way.step("for i in range(500): print('ä' * 10)")

    assert short.told.stdout == "some text\n"
    assert short.limits_hit == ()
    assert long.limits_hit == ("output",)
    assert long.told.success
    assert long.told.stdout.endswith("bytes cut]")
    assert len(long.told.stdout.encode()) < 1100
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("", "")


def test_tools_of_either_colour_are_called_counted_and_kept_on_record(executor: str) -> None:
    with road("direct", executor=executor, limits={**QUICK, "tool_calls": 3}) as way:
        way.reset()
        step = way.step("[add(1, b=2), later('on')]")
        wrong = way.step("try:\n    add('one', 2)\nexcept ToolError as error:\n    print(error)")
        many = way.step("for i in range(9):\n    add(i, 1)")

    assert step.value == [3, "on"]
    assert [(call.name, call.arguments, call.value) for call in step.told.tool_calls] == [
        ("add", ((1,), {"b": 2}), 3),
        ("later", (("on",), {}), "on"),
    ]
    assert wrong.told.stdout == "TypeError: add() argument a: Expected `int`, got `str`\n"
    assert wrong.told.tool_calls[0].error is not None
    assert many.limits_hit == ("tool_calls",)
    assert many.told.exception_type == "ToolError"
    assert len(many.told.tool_calls) == 3


@pytest.mark.slow  # waits for a deadline
def test_a_tool_that_takes_too_long_is_left_at_the_deadline(executor: str) -> None:
    gate = threading.Event()

    def wait() -> None:
        gate.wait(20)

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    env = ew.create_codeact_env(executor=executor, tools=[wait, wait_for_ever], limits=QUICK)
    try:
        env.reset()
        late = [env.step({"code": f"kept = 1\n{name}()"}) for name in ("wait", "wait_for_ever")]
        after = env.step({"code": "kept"})
    finally:
        gate.set()
        env.close()

    assert [one.execution_result.limits_hit for one in late] == [("time",)] * 2
    assert [one.exit_code for one in late] == [124] * 2
    assert after.execution_result.return_value == 1


def test_file_tools_see_a_folder_of_the_episodes_own(way: Road, tmp_path: Path) -> None:
    written = way.step(
        "[file_write('a/b.txt', 'one'), file_append('a/b.txt', '+'), file_list('a')]"
    )
    shared = way.step("file_write('/tmp/hello.txt', 'hi')\n[file_list('/tmp'), file_exists('x')]")
    outside = way.step("file_read('/etc/passwd')")
    (folder,) = tmp_path.iterdir()
    on_disk = (folder / "a" / "b.txt").read_text()
    way.reset()
    gone = way.step("file_list()")

    assert written.value == [3, 1, ["b.txt"]]
    assert [call.name for call in written.told.tool_calls] == [
        "file_write",
        "file_append",
        "file_list",
    ]
    assert shared.value == [["hello.txt"], False]
    assert outside.told.exception_type == "PermissionError"
    assert on_disk == "one+"
    assert gone.value == ["tmp/"]
    assert not folder.exists()


@pytest.mark.slow  # waits for a deadline
def test_code_that_is_interrupted_keeps_its_names(way: Road) -> None:
    spinning = way.step("kept = 7\nwhile True:\n    pass")
    sleeping = way.step("kept = 8\ntime.sleep(60)")
    after = way.step("kept")

    for late in (spinning, sleeping):
        assert late.limits_hit == ("time",)
        assert late.exit_code == 124
        assert late.told.exception_type == "TimeLimit"
        assert late.told.exception_message == "The code ran for longer than it may."
        assert not late.done
    assert after.value == 8


@pytest.mark.slow  # starts several sandboxes
def test_the_event_loop_goes_on_while_code_spins(executor: str) -> None:
    async def both() -> tuple[bool, Any]:
        limits = {"timeout_s": 3.0}
        async with (
            ew.make_async(coder, executor=executor, limits=limits) as spinning,
            ew.make_async(coder, executor=executor, limits=limits) as other,
        ):
            await spinning.reset()
            await other.reset()
            spin = asyncio.ensure_future(spinning.step({"code": "while True: pass"}))
            results = [await other.step({"code": "later('on')"}) for _ in range(3)]
            was_done = spin.done()
            await spin
            return was_done, results[-1].observation.execution_result.return_value

    assert asyncio.run(both()) == (False, "on")


def test_a_step_that_is_cancelled_stops_its_code(executor: str) -> None:
    async def cancel() -> list[Any]:
        async with ew.make_async(coder, executor=executor, limits={"timeout_s": 60.0}) as env:
            await env.reset()
            step = asyncio.ensure_future(env.step({"code": "while True:\n    later('x')"}))
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            await env.reset()
            result = await env.step({"code": "1 + 1"})
            return [result.observation.execution_result.return_value]

    before = threading.active_count()

    assert asyncio.run(cancel()) == [2]
    assert threading.active_count() == before


def test_looking_at_an_environment_whose_step_runs_shows_no_names(executor: str) -> None:
    async def look() -> Any:
        async with ew.make_async(coder, executor=executor, limits=QUICK) as env:
            await env.reset()
            step = asyncio.ensure_future(env.step({"code": "x = 1\nwhile True: pass"}))
            await asyncio.sleep(0)
            try:
                return (await env.state()).variables
            except BusyError:
                return {}
            finally:
                await step

    assert asyncio.run(look()) == {}


@pytest.mark.parametrize("name", ROADS)
def test_it_runs_on_every_road(name: str, executor: str) -> None:
    with road(name, executor=executor, limits=QUICK) as way:
        way.reset(seed=3)
        step = way.step("x = 2\nx ** 5")
        state = way.state()

    assert step.value == 32
    assert (state.executor, state.isolation) == (executor, "none")
    assert state.variables["x"].repr == "2"


def test_one_that_is_never_closed_leaves_neither_thread_nor_folder(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    env: Any = coder(executor=executor)
    env.reset()
    env.step({"code": "x = 1"})
    (thread,) = set(threading.enumerate()) - before

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        del env
        gc.collect()
    thread.join(20)

    assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_the_host_stays_where_it_is(way: Road) -> None:
    before = Path.cwd()

    way.step("file_write('here.txt', '')")

    assert Path.cwd() == before
    assert not os.path.lexists(before / "here.txt")


def test_without_smolagents_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "smolagents.local_python_executor", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[smolagents\]'"):
        ew.create_codeact_env(executor="smolagents")
