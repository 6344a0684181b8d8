"""What the executors that run code in this process have in common with the sandbox."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codeact_environments import LOCAL_CLIENTS, QUICK, CodeClient, coder, open_client

import envweave as ew
from envweave.errors import BusyError, MissingExtraError


@pytest.fixture(params=["inproc", "smolagents"])
def executor(request: pytest.FixtureRequest) -> str:
    if request.param == "smolagents":
        pytest.importorskip("smolagents")
    name: str = request.param
    return name


@pytest.fixture
def way(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CodeClient]:
    """A direct client of an environment, which leaves neither threads nor files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with open_client("direct", executor=executor, files=True, limits=QUICK) as found:
        found.reset(seed=1)
        yield found
    assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == []


def test_variables_persist_within_an_episode_only(way: CodeClient) -> None:
    way.step("x = 20\ndef double(n):\n    return 2 * n")
    during = way.step("double(x) + 2")
    way.reset()
    after = way.step("x")

    assert during.value == 42
    assert after.execution.exception_type in ("NameError", "InterpreterError")
    assert not after.done


def test_only_a_last_expression_has_a_value(way: CodeClient) -> None:
    steps = [way.step(code) for code in ("1 + 1", "x = 1", "x", "None", "", "math.sqrt(16)")]

    assert [step.value for step in steps] == [2, None, 1, None, None, 4.0]
    assert [step.execution.return_repr for step in steps] == ["2", None, "1", None, None, "4.0"]


def test_values_that_are_not_plain_data_have_a_repr_only(way: CodeClient) -> None:
    plain = way.step("[1, (2, 'three'), {4}, {'five': None}]")
    other = way.step("class Thing:\n    def __repr__(self):\n        return 'a thing'\nThing()")

    assert plain.value == [1, (2, "three"), {4}, {"five": None}]
    assert other.value is None
    assert other.execution.return_repr == "a thing"
    assert other.execution.success


def test_a_value_is_a_copy(way: CodeClient) -> None:
    first = way.step("mine = [1]\nmine").value
    way.step("mine.append(2)")
    first.append(3)

    assert first == [1, 3]
    assert way.step("mine").value == [1, 2]


def test_a_traceback_shows_only_the_lines_of_the_code(way: CodeClient) -> None:
    way.step("def divide(a):\n    b = 0\n    return a / b")
    step = way.step("n = 1\ndivide(n)")

    lines = [line.strip() for line in step.execution.traceback.splitlines() if "^" not in line]
    assert lines == [
        "Traceback (most recent call last):",
        'File "<cell 2>", line 2, in <module>',
        "divide(n)",
        'File "<cell 1>", line 3, in divide',
        "return a / b",
        "ZeroDivisionError: division by zero",
    ]
    assert step.execution.exception_type == "ZeroDivisionError"
    assert step.execution.exception_message == "division by zero"
    assert step.exit_code == 1


def test_a_syntax_error_is_an_observation(way: CodeClient) -> None:
    step = way.step("1 +")

    assert step.execution.exception_type == "SyntaxError"
    assert step.execution.traceback.splitlines()[0] == '  File "<cell 1>", line 1'


def test_output_is_captured_up_to_the_limit(
    executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    with open_client("direct", executor=executor, limits={**QUICK, "output_bytes": 1000}) as way:
        way.reset()
        short = way.step("print('some', 'text')")
        long = way.step("for i in range(500): print('ä' * 10)")

    assert short.execution.stdout == "some text\n"
    assert short.limits_hit == ()
    assert long.limits_hit == ("output",)
    assert long.execution.success
    assert long.execution.stdout.endswith("bytes cut]")
    assert len(long.execution.stdout.encode()) < 1100
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("", "")


def test_sync_and_async_tools_are_called_counted_and_recorded(executor: str) -> None:
    with open_client("direct", executor=executor, limits={**QUICK, "tool_calls": 3}) as way:
        way.reset()
        step = way.step("[add(1, b=2), later('on')]")
        wrong = way.step("try:\n    add('one', 2)\nexcept ToolError as error:\n    print(error)")
        many = way.step("for i in range(9):\n    add(i, 1)")

    assert step.value == [3, "on"]
    assert [(call.name, call.arguments, call.value) for call in step.execution.tool_calls] == [
        ("add", ((1,), {"b": 2}), 3),
        ("later", (("on",), {}), "on"),
    ]
    assert wrong.execution.stdout == "TypeError: add() argument a: 'one' is not an int\n"
    assert wrong.execution.tool_calls[0].error is not None
    assert many.limits_hit == ("tool_calls",)
    assert many.execution.exception_type == "ToolError"
    assert len(many.execution.tool_calls) == 3


@pytest.mark.slow  # waits for a deadline
def test_a_tool_that_takes_too_long_is_abandoned_at_the_deadline(executor: str) -> None:
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


def test_file_tools_use_a_folder_of_the_episode(way: CodeClient, tmp_path: Path) -> None:
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
    assert [call.name for call in written.execution.tool_calls] == [
        "file_write",
        "file_append",
        "file_list",
    ]
    assert shared.value == [["hello.txt"], False]
    assert outside.execution.exception_type == "PermissionError"
    assert on_disk == "one+"
    assert gone.value == ["tmp/"]
    assert not folder.exists()


@pytest.mark.slow  # waits for a deadline
def test_code_that_is_interrupted_keeps_its_variables(way: CodeClient) -> None:
    late = way.step("kept = 7\nwhile True:\n    pass")
    after = way.step("kept")

    assert late.limits_hit == ("time",)
    assert late.exit_code == 124
    assert late.execution.exception_type == "TimeLimit"
    assert late.execution.exception_message == "The code exceeded its time limit."
    assert not late.done
    assert after.value == 7


@pytest.mark.slow  # starts several sandboxes
def test_code_in_a_loop_does_not_block_the_event_loop(executor: str) -> None:
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


def test_the_state_during_a_step_has_no_variables(executor: str) -> None:
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


@pytest.mark.parametrize("name", LOCAL_CLIENTS)
def test_it_runs_however_the_environment_is_used(name: str, executor: str) -> None:
    with open_client(name, executor=executor, limits=QUICK) as way:
        way.reset(seed=3)
        step = way.step("x = 2\nx ** 5")
        state = way.state()

    assert step.value == 32
    assert (state.executor, state.isolation) == (executor, "none")
    assert state.variables["x"].repr == "2"


def test_an_environment_that_is_never_closed_leaves_neither_thread_nor_folder(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    env: Any = coder(executor=executor, files=True)
    env.reset()
    env.step({"code": "file_write('x', 'y')"})

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        del env
        deadline_s = time.monotonic() + 20
        while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline_s:
            gc.collect()  # a thread may hold the last step a moment longer
            left.pop().join(0.1)

    assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_of_the_host_is_unchanged(way: CodeClient) -> None:
    before = Path.cwd()

    way.step("file_write('here.txt', '')")

    assert Path.cwd() == before
    assert not os.path.lexists(before / "here.txt")


def test_without_smolagents_the_error_gives_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "smolagents.local_python_executor", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[smolagents\]'"):
        ew.create_codeact_env(executor="smolagents")
