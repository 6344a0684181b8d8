"""An environment whose actions are code, opened in every way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from codeact_environments import (
    LOCAL_CLIENTS,
    QUICK,
    REMOTE_CLIENTS,
    CodeClient,
    Step,
    coder,
    keep_sandbox,
    open_client,
)

import envweave as ew
from envweave.codec import to_plain
from envweave.errors import ActionError

END_ITSELF = "import os; os._exit(3)"


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    with keep_sandbox(limits=QUICK):
        yield


@pytest.fixture(params=LOCAL_CLIENTS)
def way(request: pytest.FixtureRequest) -> Iterator[CodeClient]:
    with open_client(request.param, limits=QUICK) as found:
        yield found


def test_variables_persist_only_within_an_episode(way: CodeClient) -> None:
    first = way.reset(seed=1)
    way.step("x = 20\ndef double(n):\n    return 2 * n")
    during = way.step("double(x) + 2")
    way.reset(seed=1)
    after = way.step("x")

    assert first.available_tools == ["add", "later"]
    assert during.value == 42
    assert after.execution.exception_type == "NameError"
    assert not after.done


def test_an_exception_is_an_observation_and_the_episode_continues(way: CodeClient) -> None:
    way.reset()

    failed = way.step("before = 1\nprint('so far')\nbefore / 0")
    later = way.step("before")

    assert (failed.done, failed.reward, failed.end) == (False, None, None)
    assert failed.execution.exception_type == "ZeroDivisionError"
    assert failed.execution.exception_message == "division by zero"
    assert "before / 0" in failed.stderr
    assert failed.execution.stdout == "so far\n"
    assert failed.exit_code == 1
    assert later.value == 1


def test_code_that_ends_its_session_ends_the_episode_and_is_to_blame(way: CodeClient) -> None:
    way.reset()

    last = way.step(END_ITSELF)
    way.reset()
    again = way.step("1 + 1")

    assert last.done
    assert last.reward == 0.0
    assert last.end is not None
    assert (last.end["reason"], last.end["blame"]) == ("error", "agent")
    assert last.end["cause"] == "Its code ended it: its process exited with status 3."
    assert last.execution.session_ended
    assert last.exit_code == 137
    assert again.value == 2


@pytest.mark.slow  # starts several sandboxes
def test_code_calls_sync_and_async_tools_and_the_calls_are_recorded(way: CodeClient) -> None:
    way.reset()

    step = way.step("add(1, b=2), later('on')")

    assert list(step.value) == [3, "on"]
    calls = [(call.name, call.value, call.error) for call in step.execution.tool_calls]
    assert calls == [("add", 3, None), ("later", "on", None)]


@pytest.mark.slow  # waits for a deadline
def test_interrupted_code_keeps_its_variables(way: CodeClient) -> None:
    way.reset()

    late = way.step("kept = 7\nwhile True:\n    pass")
    after = way.step("kept")

    assert late.limits_hit == ("time",)
    assert late.exit_code == 124
    assert late.execution.exception_type == "TimeLimit"
    assert not late.done
    assert after.value == 7


@pytest.mark.parametrize("name", LOCAL_CLIENTS)
def test_the_environment_sets_the_reward_of_a_fatal_step(name: str) -> None:
    with open_client(name, fatal_reward=-2.5, limits=QUICK) as way:
        way.reset()

        last = way.step(END_ITSELF)

    assert last.reward == -2.5
    assert last.done


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("name", [*LOCAL_CLIENTS[1:], *REMOTE_CLIENTS])
def test_the_same_code_gives_the_same_observation_with_every_client(name: str) -> None:
    played = play(name)

    alone = play("direct")

    assert [plain(step) for step in played] == [plain(step) for step in alone]


def play(name: str) -> list[Step]:
    options = {"files": True, "limits": QUICK, "preload": ["numpy"], "fatal_reward": -1.0}
    with open_client(name, **options) as way:
        way.reset(seed=5)
        first = [way.step(code) for code in PLAYED]
        way.reset()
        return [*first, way.step("1 + 1")]


PLAYED = (
    "import random, sys\nn = random.randint(0, 10**9)\nn",
    "print('out', n); print('err', file=sys.stderr)",
    "{'text': 'ä', 'bytes': b'\\x00', 'big': 2**80, 'inf': float('inf'), 'none': [None, True]}",
    "raise ValueError('wrong')",
    "def f(:",
    "file_write('a.txt', 'abc'), file_read('a.txt')",
    "add('no', 2), later('never')",
    "add(1, b=2), later('on')",
    "undefined",
    "(x for x in 'abc')",
    "import numpy as np; [np.arange(4).reshape(2, 2), np.float32(1.5), np.array(True)]",
    "while True: pass",
    "n",
    END_ITSELF,
)


def plain(step: Step) -> Any:
    """Return all that a step shows, with tuples and sets as lists, as HTTP has them."""
    shown = to_plain(step.observation)
    shown["metadata"].pop("end", None)  # where there is no result around it
    shown.pop("truncated")
    shown["execution_result"]["duration_s"] = 0.0
    for call in shown["execution_result"]["tool_calls"]:
        call["duration_s"] = 0.0
    shape = shown["execution_result"]["return_repr"]
    if shape is not None and " at 0x" in shape:
        shown["execution_result"]["return_repr"] = shape.partition(" at 0x")[0]
    return shown, step.reward, step.done, step.end


def test_math_and_similar_modules_are_already_imported() -> None:
    with open_client("direct", limits=QUICK) as way:
        way.reset()

        step = way.step(
            "json.loads('[1]'), re.sub('a', 'b', 'a'), collections.Counter('aa')['a'], "
            "datetime.timedelta(1).days, math.sqrt(16), statistics.mean([1, 2, 3])"
        )
        root = way.step("math.sqrt(16)")

    assert step.value == ([1], "b", 2, 1, 4.0, 2)
    assert root.value == 4.0
    assert type(root.value) is float


def test_only_the_last_expression_is_the_value() -> None:
    with open_client("direct", limits=QUICK) as way:
        way.reset()

        steps = [
            way.step(code) for code in ("1 + 1", "x = 1", "x = 2; x", "None", "'a'\n# end", "")
        ]

    assert [step.value for step in steps] == [2, None, 2, None, "a", None]
    assert [step.execution.return_repr for step in steps] == ["2", None, "2", None, "'a'", None]


def test_a_value_that_is_not_plain_data_is_shown_as_its_repr_only() -> None:
    with open_client("direct", limits=QUICK) as way:
        way.reset()

        step = way.step("class Thing:\n    def __repr__(self):\n        return 'a thing'\nThing()")

    assert step.value is None
    assert step.execution.return_repr == "a thing"
    assert step.execution.success


def test_a_bad_action_is_refused_by_field_and_the_episode_is_unharmed() -> None:
    with open_client("direct", limits=QUICK) as way:
        way.reset()
        way.step("x = 1")

        with pytest.raises(ActionError, match="cod"):
            way.env.step({"cod": "x"})
        with pytest.raises(ActionError, match="code"):
            way.env.step({"code": 1})
        after = way.step("x")

    assert after.value == 1


def test_the_four_sessions_of_a_vector_are_separate() -> None:
    codes = [{"code": f"mine = {i}\nmine * 10"} for i in range(4)]
    with ew.make_vector(coder, limits=QUICK, num_envs=4) as venv:
        venv.reset(seed=0)

        batch = venv.step(codes)
        others = venv.step([{"code": "mine"}] * 4)

    assert batch.current["execution_result"]["return_value"] == [0, 10, 20, 30]
    assert others.current["execution_result"]["return_value"] == [0, 1, 2, 3]
    assert batch.valid.all()


def test_a_session_that_ends_itself_restarts_and_the_rest_of_the_vector_continues() -> None:
    kill, live = {"code": END_ITSELF}, {"code": "n = n + 1 if 'n' in globals() else 0\nn"}
    with ew.make_vector(coder, limits=QUICK, num_envs=4, autoreset=True) as venv:
        venv.reset(seed=0)
        venv.step([live] * 4)

        ended = venv.step([live, kill, live, live])
        after = venv.step([live] * 4)

    assert ended.done.tolist() == [False, True, False, False]
    assert ended.valid.tolist() == [True] * 4
    assert ended.reward[1] == 0.0
    assert ended[1].end.blame == "agent"
    assert after.current["execution_result"]["return_value"] == [2, 0, 2, 2]


def test_a_task_is_shown_as_the_prompt_during_its_episode_only() -> None:
    tasks = ew.Tasks({"train": [ew.Task("sum", data={"prompt": "Add 1 and 2."})]})
    with open_client("direct", tasks=tasks, limits=QUICK) as way:
        first = way.reset(task="sum")
        step = way.step("1 + 2")

    assert first.prompt == "Add 1 and 2."
    assert step.observation.prompt == ""
