"""Unusual behavior of code, callers and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import envweave as ew
from envweave.codeact import ExactMatch
from envweave.errors import BusyError, OptionError

SURROGATE = "\\ud800"


@pytest.fixture(params=["sandbox", "inproc"])
def executor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def env(executor: str) -> Iterator[Any]:
    with ew.create_codeact_env(executor=executor, tools={"note": lambda text: text}) as made:
        made.reset(seed=1)
        yield made


def step(env: Any, code: str) -> Any:
    return env.step(ew.CodeAction(code=code))


def value_of(env: Any, code: str) -> Any:
    result = step(env, code).execution_result
    assert result.success, result
    return result.return_value


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    "options",
    [
        {"grader": ExactMatch},
        {"grader": 5},
        {"transform": 5},
        {"tasks": ["a"]},
        {"fatal_reward": "1"},
        {"fatal_reward": float("nan")},
        {"fatal_reward": True},
        {"limits": 5},
        {"limits": []},
        {"preload": 5},
        {"visible": 5},
        {"visible": Path("/usr")},
    ],
    ids=str,
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options

    with pytest.raises(OptionError, match=name):
        ew.create_codeact_env(**options)


def test_a_transform_that_cannot_be_called_is_refused_when_it_is_set(env: Any) -> None:
    with pytest.raises(OptionError, match="transform=5"):
        env.transform = 5

    assert value_of(env, "1") == 1


def test_an_invalid_name_or_repr_does_not_hide_other_variables(env: Any) -> None:
    step(env, f"globals()['{SURROGATE}'] = 1\nx = 2")
    step(env, f"class Odd:\n    def __repr__(self): return '{SURROGATE}'\ny = Odd()")

    shown = env.state.variables

    assert shown["x"].repr == "2"
    assert shown["y"].repr == SURROGATE
    assert shown[SURROGATE].repr == "1"


def test_a_tool_called_by_a_repr_is_recorded_with_the_next_step(env: Any) -> None:
    step(env, "class Calls:\n    def __repr__(self): return note('unseen')\ncalls = Calls()")

    shown = env.state.variables["calls"].repr
    first, second = step(env, "note('seen')"), step(env, "note('again')")

    assert shown == "unseen"
    assert [call.value for call in first.execution_result.tool_calls] == ["unseen", "seen"]
    assert [call.value for call in second.execution_result.tool_calls] == ["again"]


def test_a_tool_call_of_an_old_episode_is_not_recorded_in_the_next(env: Any) -> None:
    step(env, "class Calls:\n    def __repr__(self): return note('unseen')\ncalls = Calls()")
    assert env.state.variables["calls"].repr == "unseen"

    env.reset()

    assert step(env, "1").execution_result.tool_calls == ()


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("code", ["10 ** 5000", "[10 ** 5000]", "note(10 ** 5000)"])
def test_an_int_of_many_digits_can_be_logged(env: Any, code: str) -> None:
    observation = step(env, code)

    assert "cannot be shown" in repr(observation)
    assert observation.execution_result.success


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_exits_fails_and_the_host_continues(*, executor: str, is_async: bool) -> None:
    def leave() -> None:
        sys.exit(3)

    async def leave_later() -> None:
        sys.exit(3)

    tools = {"leave": leave_later if is_async else leave}
    with ew.create_codeact_env(executor=executor, tools=tools) as env:
        env.reset()
        result = step(env, "leave()").execution_result

    assert result.exception_type == "ToolError"
    assert result.exception_message == "RuntimeError: leave() called sys.exit() with status 3."


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder outside /tmp, which is private to a session."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


def test_file_tools_delete_a_link_that_leads_outside_and_not_its_target(outside: Path) -> None:
    target = outside / "target"
    target.write_text("kept")
    with ew.create_codeact_env(files=True) as env:
        env.reset()
        step(env, f"import os\nos.symlink({str(target)!r}, 'out')\nos.symlink('/', 'root')")

        assert value_of(env, "file_exists('out')") is True
        assert step(env, "file_read('out')").execution_result.exception_type == "PermissionError"
        for code in (f"file_exists('root{target}')", f"file_delete('root{target}')"):
            assert step(env, code).execution_result.exception_type == "PermissionError"
        assert value_of(env, "file_delete('out')\nfile_exists('out')") is False
    assert target.read_text() == "kept"


def test_text_is_read_from_a_file_as_it_was_written(executor: str) -> None:
    with ew.create_codeact_env(executor=executor, files=True) as env:
        env.reset()
        step(env, "text = 'a\\r\\nb\\rc\\n'\nfile_write('x', text)\nfile_append('x', text)")

        assert value_of(env, "file_read('x')") == "a\r\nb\rc\n" * 2


def test_closing_during_a_step_of_another_thread_is_refused_and_closes_nothing() -> None:
    entered, may_go_on = threading.Event(), threading.Event()

    def wait() -> int:
        entered.set()
        return 7 if may_go_on.wait(20) else 0

    with ew.create_codeact_env(tools=[wait], limits={"timeout_s": 30}) as env:
        env.reset()
        got: list[Any] = []
        stepping = threading.Thread(target=lambda: got.append(value_of(env, "wait()")))
        stepping.start()
        assert entered.wait(20)
        try:
            with pytest.raises(BusyError):
                env.close()
        finally:
            may_go_on.set()
            stepping.join(20)

        assert got == [7]
        assert value_of(env, "8") == 8


def run_apart(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


FORKING = """
import os, signal
import envweave as ew

env = ew.create_codeact_env()
env.reset()
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        env.step(ew.CodeAction(code="1"))
    except ew.errors.CallOrderError as error:
        print(error, flush=True)
    env.close()
    with ew.create_codeact_env() as own:
        own.reset()
        print(own.step(ew.CodeAction(code="2")).execution_result.return_value, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(env.step(ew.CodeAction(code="3")).execution_result.return_value)
env.close()
"""


@pytest.mark.slow  # starts several sandboxes
def test_a_forked_process_does_not_touch_its_parents_environment() -> None:
    done = run_apart(FORKING)

    assert done.stdout.splitlines() == [
        "This environment was made before this process was forked, and belongs to its parent. "
        "Make one in this process.",
        "2",
        "0",
        "3",
    ], done.stderr


LEAVING = """
import envweave as ew

env = ew.create_codeact_env(executor={executor!r}, files=True)
env.reset()
env.step(ew.CodeAction(code="file_write('x', 'y')"))
"""


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("executor", ["sandbox", "inproc", "smolagents"])
def test_a_process_that_exits_without_closing_leaves_no_folders_or_warnings(
    executor: str, tmp_path: Path
) -> None:
    if executor == "smolagents":
        pytest.importorskip("smolagents")

    done = run_apart(LEAVING.format(executor=executor), TMPDIR=str(tmp_path))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_misspelled_keyword_of_reset_is_refused_by_name(env: Any) -> None:
    misspelt: Callable[..., Any] = env.reset

    with pytest.raises(TypeError, match=r"reset.*'sed'"):
        misspelt(sed=1)
