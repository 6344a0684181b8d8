"""Behavior that is specific to the `smolagents` executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from codeact_environments import QUICK, CodeClient, open_client

import envweave as ew

library = pytest.importorskip("smolagents.local_python_executor")


@pytest.fixture
def way() -> Iterator[CodeClient]:
    with open_client("direct", executor="smolagents", limits=QUICK) as found:
        found.reset(seed=1)
        yield found


def test_a_final_answer_ends_the_code_and_is_its_value(way: CodeClient) -> None:
    step = way.step("print('before')\nfinal_answer([1, 2])\nprint('after')")

    assert step.value == [1, 2]
    assert step.execution.stdout == "before\n"
    assert step.execution.success
    assert not step.done


def test_a_final_answer_goes_to_the_tool_of_that_name() -> None:
    execution: list[Any] = []

    def final_answer(answer: Any) -> None:
        execution.append(answer)

    env = ew.create_codeact_env(executor="smolagents", tools=[final_answer], limits=QUICK)
    try:
        env.reset()
        step = env.step({"code": "final_answer(answer={'n': 42})\nfinal_answer(0)"})
    finally:
        env.close()

    assert execution == [{"n": 42}]
    assert step.execution_result.return_value == {"n": 42}
    assert [call.name for call in step.execution_result.tool_calls] == ["final_answer"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os", "Import of os is not allowed"),
        ("open('x')", "Forbidden function evaluation: 'open'"),
        ("add = 5", "Cannot assign to name 'add'"),
        ("().__class__", "Forbidden access to dunder attribute"),
    ],
)
def test_refused_code_gives_an_observation(way: CodeClient, code: str, message: str) -> None:
    step = way.step(code)
    after = way.step("1 + 1")

    assert step.execution.exception_type == "InterpreterError"
    assert step.execution.exception_message.startswith(message)
    assert code in step.execution.traceback
    assert after.value == 2


def test_its_own_limits_hold(way: CodeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MAX_WHILE_ITERATIONS", 10)

    step = way.step("n = 0\nwhile True:\n    n += 1")
    after = way.step("n")

    assert step.execution.exception_type == "InterpreterError"
    assert "10 iterations" in step.execution.exception_message
    assert after.value == 11


def test_code_that_could_not_be_parsed_does_not_repeat_what_was_printed(way: CodeClient) -> None:
    way.step("print('once')")

    step = way.step("print('twice'")

    assert step.execution.stdout == ""
    assert step.execution.exception_type == "SyntaxError"


def test_output_before_a_failure_or_an_interrupt_is_shown(way: CodeClient) -> None:
    failed = way.step("print('a')\n1 / 0")
    late = way.step("print('b')\nwhile True: pass")

    assert (failed.execution.stdout, late.execution.stdout) == ("a\n", "b\n")
    assert late.limits_hit == ("time",)


def test_random_generators_belong_to_the_episode_inside_functions_too() -> None:
    code = (
        "def draw():\n    import random\n    from numpy.random import rand\n"
        "    return [random.random(), float(rand())]\n"
        "[draw(), [random.random() for _ in range(2)]]"
    )
    drawn = []
    with open_client("direct", executor="smolagents", limits={"timeout_s": 20.0}) as way:
        for seed in (1, 1, 2):
            way.reset(seed=seed)
            drawn.append(way.step(code).value)

    assert drawn[0] == drawn[1] != drawn[2]
    assert None not in drawn


def test_a_failure_inside_a_library_shows_where_the_code_called_it(way: CodeClient) -> None:
    step = way.step("text = '{'\njson.loads(text)")

    lines = step.execution.traceback.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "<cell 1>", line 2, in <module>',
        "    json.loads(text)",
    ]
    assert "/json/" in lines[3]
    assert step.execution.exception_type == "JSONDecodeError"
    assert "smolagents" not in step.execution.traceback
