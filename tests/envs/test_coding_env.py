"""The coding environment: Python with variables of an episode, output, errors and a status."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import envweave as ew
from envweave.codeact import Grade, Grader
from envweave.envs.coding_env import CodeAction, CodeObservation, CodingEnvironment
from envweave.errors import ActionError, OptionError
from envweave.sandbox import Limits

Run = Callable[..., Any]
LIMITS = {"timeout_s": 0.5, "grace_s": 0.3}
END_ITSELF = "import os; os._exit(3)"


def add(a: int, b: int = 2) -> int:
    """Return the sum."""
    return a + b


@pytest.fixture(scope="module")
def env() -> Iterator[ew.Env]:
    with ew.make("coding-v0", limits=LIMITS, tools=[add]) as one:
        yield one


@pytest.fixture
def run(env: ew.Env) -> Run:
    """Runs code in an episode of its own, and returns the last result."""
    env.reset(seed=7)

    def run(*pieces: str) -> Any:
        for piece in pieces:
            result = env.step(CodeAction(piece))
        return result

    return run


def test_an_episode_begins_with_empty_output(env: ew.Env) -> None:
    began = env.reset(seed=1).observation

    assert began == CodeObservation(available_tools=["add"])
    assert (began.stdout, began.stderr, began.exit_code) == ("", "", 0)


def test_output_value_and_status_are_separate(run: Run) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n[1, 'two']"

    assert run(code).observation == CodeObservation(
        code=code,
        stdout="out\n",
        stderr="err\n",
        exit_code=0,
        result="[1, 'two']",
        available_tools=["add"],
    )


def test_variables_persist_only_within_an_episode(env: ew.Env, run: Run) -> None:
    lasting = run("x = 20", "def double(n): return 2 * n", "double(x)").observation.result
    env.reset()

    assert lasting == "40"
    assert "NameError: name 'x' is not defined" in run("x").observation.stderr


def test_an_error_shows_the_lines_of_the_agent_and_the_episode_continues(run: Run) -> None:
    result = run("def half(n):\n    return n / 0", "print('so far')\nhalf(3)")
    shown = result.observation

    assert (shown.stdout, shown.exit_code, shown.result) == ("so far\n", 1, None)
    assert "    half(3)\n" in shown.stderr
    assert "line 2, in half\n    return n / 0\n" in shown.stderr
    assert shown.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (result.done, result.reward) == (False, None)


def test_a_syntax_error_points_at_its_position(run: Run) -> None:
    shown = run("total = (1 +\n").observation

    assert shown.exit_code == 1
    assert "line 1\n    total = (1 +\n" in shown.stderr
    assert "SyntaxError: '(' was never closed" in shown.stderr


def test_an_endless_loop_is_interrupted_and_variables_are_kept(run: Run) -> None:
    shown = run("kept = 1\nprint('begun')\nwhile True: pass").observation

    assert (shown.stdout, shown.exit_code, shown.limits_hit) == ("begun\n", 124, ["time"])
    assert "while True: pass" in shown.stderr
    assert run("kept").observation.result == "1"


@pytest.mark.parametrize(
    ("code", "limit"),
    [("x = bytearray(10**12)", "memory"), ("print('x' * 10**6)", "output")],
)
def test_an_exceeded_limit_is_named(run: Run, code: str, limit: str) -> None:
    assert run(code).observation.limits_hit == [limit]


def test_code_that_ends_its_session_has_ended_the_episode(run: Run) -> None:
    result = run(END_ITSELF)

    assert (result.end.reason, result.end.blame) == ("error", "agent")
    assert (result.reward, result.truncated) == (0.0, True)
    assert result.observation.exit_code == 137
    assert "exited with status 3" in result.observation.stderr


def test_the_state_has_the_status_and_the_variable_names(env: ew.Env, run: Run) -> None:
    run("x = [1, 2]", "x[5]")

    state = env.state()

    assert (state.last_exit_code, state.step_count) == (1, 2)
    assert (state.variables["x"].type, state.variables["x"].repr) == ("list", "[1, 2]")


def test_tools_are_functions_of_the_code_and_their_calls_are_shown(run: Run) -> None:
    shown = run("add(add(1), b=5)").observation

    assert shown.result == "8"
    assert [(call.name, call.arguments, call.value) for call in shown.tool_calls] == [
        ("add", ((1,), {}), 3),
        ("add", ((3,), {"b": 5}), 8),
    ]


def test_an_action_with_other_fields_is_refused(env: ew.Env) -> None:
    env.reset()

    with pytest.raises(ActionError, match=r"action\.kode: unknown field"):
        env.step({"kode": "1"})


def test_equal_seeds_draw_equal_numbers(env: ew.Env, run: Run) -> None:
    drawn = []
    for seed in (1, 1, 2):
        env.reset(seed=seed)
        drawn.append(run("random.random()").observation.result)

    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_a_transform_is_applied_once_and_finds_what_it_looks_for(backend: str) -> None:
    transform = ew.create_math_env_transform(expected_answer=42)
    with ew.make(CodingEnvironment, backend=backend, transform=transform) as env:
        first = env.reset()
        right = env.step(CodeAction("6 * 7"))
        wrong = env.step(CodeAction("6 * 8"))
        unsafe = env.step(CodeAction("import os; os.system('true'); 42"))

    assert first.reward is None
    assert right.reward_parts["math"] == 1.0
    assert wrong.reward_parts["math"] == 0.0
    assert unsafe.reward < wrong.reward < right.reward
    for result in (right, wrong, unsafe):
        assert math.isclose(sum(result.reward_parts.values()), result.reward)


def test_the_file_tools_use_the_files_that_code_sees() -> None:
    with ew.make(CodingEnvironment, files=True) as env:
        env.reset()
        env.step(CodeAction("file_write('a/b.txt', 'hello')"))
        shown = env.step(CodeAction("open('a/b.txt').read()")).observation

    assert shown.result == "'hello'"
    assert "file_read" in shown.available_tools


class Tens(Grader):
    """Passes the answer 10."""

    async def grade(self, attempt: Any) -> Any:
        return Grade(float(attempt.answer == 10), attempt.answer == 10)


def test_a_grader_ends_the_episode_by_its_grade() -> None:
    with ew.make(CodingEnvironment, grader=Tens()) as env:
        env.reset()
        result = env.step(CodeAction("final_answer(2 * 5)"))

    assert (result.terminated, result.reward) == (True, 1.0)
    assert result.observation.metadata["grade"] == {"passed": True}


def test_a_remote_observation_is_rebuilt_from_its_fields() -> None:
    shown = CodeObservation(stdout="1\n", stderr="E", exit_code=1, limits_hit=["time"], result="x")

    result = shown.execution_result

    assert (result.success, result.stdout, result.stderr) == (False, "1\n", "E")
    assert (result.limits_hit, result.return_repr, result.return_value) == (("time",), "x", None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"profile": "shall"},
            "profile must be one of 'python', 'shell', got 'shall'. Did you mean 'shell'?",
        ),
        ({"limits": {"timout_s": 1}}, "limits has no field 'timout_s'. Did you mean 'timeout_s'?"),
        ({"executor": "sandbocks"}, "'smolagents', 'inproc', got 'sandbocks'"),
        ({"profile": "shell", "tools": [add]}, "tools=… is only supported by profile='python'"),
        ({"profile": "shell", "files": True}, "files=… is only supported by profile='python'"),
        (
            {"profile": "shell", "preload": ["json"]},
            "preload=… is only supported by profile='python'",
        ),
        (
            {"profile": "shell", "executor": "inproc"},
            "executor=… is only supported by profile='python'",
        ),
        ({"profile": "shell", "grader": Tens()}, "grade='every_step'"),
        ({"profile": "shell", "limits": {"timout_s": 1}}, "limits has no field 'timout_s'"),
        ({"profile": "shell", "limits": Limits(open_files=16)}, "a shell needs at least 32"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as refused:
        CodingEnvironment(**options)

    assert says in str(refused.value)


@pytest.mark.slow  # starts several sandboxes
def test_its_models_and_client_are_importable_without_server_and_sandbox() -> None:
    code = (
        "import sys, envweave.envs.coding_env as e; e.CodingEnv, e.CodeObservation;"
        "print([n for n in ('starlette', 'envweave.sandbox.sandbox') if n in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
