"""Graders in an environment: when they grade, what is shown, and whose fault it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from codeact_environments import graded, lease_grading_sandbox

import envweave as ew
from envweave import CodeAction, create_codeact_env
from envweave.codeact import (
    Attempt,
    ExactMatch,
    Grade,
    Grader,
    GradingError,
    HiddenTests,
    Judge,
    NumericMatch,
    RegexMatch,
    Weighted,
)
from envweave.errors import OptionError, ResetFailedError, TaskError
from envweave.sandbox import Limits
from envweave.session import DirectEnvironment
from envweave.types import Task, Tasks

Make = Callable[..., DirectEnvironment]


@pytest.fixture(autouse=True, scope="module")
def sandbox() -> Iterator[None]:
    """The sandbox that these environments share, kept over the tests."""
    lease = lease_grading_sandbox()
    yield
    lease.release()


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[DirectEnvironment] = []

    def one(grader: Grader, **options: Any) -> DirectEnvironment:
        made.append(create_codeact_env(grader=grader, **options))
        return made[-1]

    yield one
    for env in made:
        env.close()


class Broken(Grader):
    """Fails to grade, as configured."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def grade(self, attempt: Attempt) -> Grade:
        raise self.error


class Watching(Grader):
    """Records attempts, and passes them if configured to."""

    def __init__(self, *, passes: bool = False) -> None:
        self.passes = passes
        self.attempts: list[Attempt] = []
        self.closed = 0

    async def grade(self, attempt: Attempt) -> Grade:
        self.attempts.append(attempt)
        return Grade(float(self.passes), self.passes, {"passed": "forged", "seen": 1})

    async def close(self) -> None:
        self.closed += 1


def play(env: DirectEnvironment, *codes: str, **reset: Any) -> list[Any]:
    env.reset(**reset)
    return [env.step(CodeAction(code=code)) for code in codes]


def test_final_answer_ends_the_episode_with_the_grade(make: Make) -> None:
    first, last = play(make(NumericMatch(42)), "x = 6 * 7", "final_answer(x)")

    assert (first.reward, first.done) == (None, False)
    assert (last.reward, last.done) == (1.0, True)
    assert last.metadata["reward_parts"] == {"grade": 1.0}
    assert last.metadata["grade"] == {"passed": True}


def test_every_step_is_graded_until_one_passes(make: Make) -> None:
    seen = play(make(NumericMatch(42), grade="every_step"), "41", "x = 42", "x")

    assert [(one.reward, one.done) for one in seen] == [(0.0, False), (0.0, False), (1.0, True)]


def test_the_program_is_the_code_of_the_completed_steps(make: Make) -> None:
    watching = Watching()

    play(make(watching), "a = 1", "b = 1 / 0", "c = 3", "final_answer(a)\n1 / 0")

    (attempt,) = watching.attempts
    assert attempt.program == "a = 1\nc = 3\nfinal_answer(a)\n1 / 0"
    assert attempt.code == "final_answer(a)\n1 / 0"
    assert (attempt.answer, attempt.answered) == (1, True)
    assert attempt.result.exception_type == "ZeroDivisionError"


def test_a_value_without_a_plain_form_is_not_an_answer(make: Make) -> None:
    watching = Watching()

    play(make(watching, grade="every_step"), "object()", "None", "5")

    assert [one.answered for one in watching.attempts] == [False, False, True]


def test_details_cannot_override_the_verdict(make: Make) -> None:
    (seen,) = play(make(Watching()), "final_answer(1)")

    assert seen.metadata["grade"] == {"passed": False, "seen": 1}


def test_the_expected_answer_comes_from_the_task_of_the_episode(make: Make) -> None:
    rows = [Task(str(n), data={"prompt": f"{n} + 1?"}, private={"answer": n + 1}) for n in (1, 2)]
    env = make(NumericMatch(from_task="answer"), tasks=Tasks({"train": rows}))

    paid = [play(env, "final_answer(2)", task=row)[0].reward for row in rows]

    assert paid == [1.0, 0.0]


SHOWN = Task("t", data={"prompt": "?", "answer": 1})


@pytest.mark.parametrize(
    "grader",
    [
        ExactMatch(from_task="answer"),
        NumericMatch(from_task="answer"),
        RegexMatch(from_task="answer"),
        HiddenTests(from_task="answer"),
        Judge(lambda prompt: "", from_task="answer"),
        Weighted({NumericMatch(1): 1.0, ExactMatch(from_task="answer"): 1.0}),
    ],
    ids=repr,
)
def test_the_expected_answer_must_be_in_the_private_part_of_a_task(
    grader: Grader, make: Make
) -> None:
    message = r"'answer' is in the data of task 't', which callers may see\. Move it to the private"

    with pytest.raises(TaskError, match=message):
        make(grader, tasks=Tasks({"train": [SHOWN]}))
    with pytest.raises(ResetFailedError, match=message):
        make(grader).reset(task=SHOWN)


def test_every_listed_task_is_checked_and_one_of_an_endless_split(make: Make) -> None:
    fine = Task("fine", private={"answer": 1})
    made = []

    def endless(split: str, index: int) -> Task:
        made.append(index)
        return Task(f"{split}-{index}", split, private={"answer": 1})

    with pytest.raises(TaskError, match="is in the data of task 't'"):
        make(ExactMatch(from_task="answer"), tasks=Tasks({"train": [fine, SHOWN]}))
    make(ExactMatch(from_task="answer"), tasks=Tasks.endless(endless))

    assert set(made) == {0}


SEARCH = """
import gc, sys
print(task_prompt if "task_prompt" in globals() else "", dir(), vars())
for one in gc.get_objects():
    try:
        print(repr(one)[:100_000])
    except Exception:
        pass
frame = sys._getframe()
while frame:
    print(frame.f_globals, frame.f_locals)
    frame = frame.f_back
"""


def test_private_data_does_not_enter_a_session(make: Make) -> None:
    secret = "the answer that no code has seen"
    task = Task("t", data={"prompt": "?"}, private={"answer": secret})
    tools = {"whole": lambda: task, "private": lambda: {"of the task": task.private}}
    limits = Limits(output_bytes=1 << 24, timeout_s=30)
    env = make(
        ExactMatch(from_task="answer"), tasks=Tasks({"train": [task]}), tools=tools, limits=limits
    )

    calls = (
        "for tool in (whole, private):\n    try: print(tool())\n    except Exception as e: print(e)"
    )
    seen = play(env, SEARCH, calls, "final_answer('a guess')")

    assert seen[-1].reward == 0.0
    assert all(one.stdout for one in seen[:2])
    assert secret not in f"{seen} {env.state} {env.tasks}"


def test_code_that_ends_its_session_is_not_graded_but_blamed(make: Make) -> None:
    watching = Watching(passes=True)
    env = make(watching, grade="every_step", fatal_reward=-1.0)

    (seen,) = play(env, "import os\nos._exit(0)")

    assert watching.attempts == []
    assert (seen.reward, seen.metadata["end"]["blame"]) == (-1.0, "agent")


def test_code_that_ends_its_session_after_it_handed_in_is_graded(make: Make) -> None:
    (seen,) = play(make(NumericMatch(42)), "final_answer(42)\nimport os\nos._exit(0)")

    assert (seen.reward, seen.done) == (1.0, True)


def judge_that_says_nothing() -> Grader:
    return Judge(lambda prompt: "no verdict", rubric="Is it polite?")


@pytest.fixture
def lost_sandbox() -> Iterator[Grader]:
    """Hidden tests in a sandbox that was ended."""
    limits = Limits(timeout_s=2.5)
    lease = lease_grading_sandbox(limits=limits)
    lease.sandbox.end()
    yield HiddenTests("assert f() == 1", limits=limits)
    lease.release()


@pytest.mark.parametrize(
    ("grader", "reason", "blame"),
    [
        (judge_that_says_nothing, "lost", "infrastructure"),
        (lambda: Broken(GradingError("The court is closed.")), "lost", "infrastructure"),
        (lambda: Broken(ValueError("a bug")), "error", "environment"),
        (lambda: NumericMatch(from_task="answer"), "error", "environment"),
    ],
)
def test_a_grader_that_cannot_grade_makes_the_episode_unusable(
    grader: Callable[[], Grader], reason: str, blame: str, make: Make
) -> None:
    env = make(grader())

    (seen,) = play(env, "final_answer(1)")

    assert math.isnan(seen.reward)
    assert seen.metadata["end"]["reason"] == reason
    assert seen.metadata["end"]["blame"] == blame
    assert "grade" not in seen.metadata
    assert play(env, "1 + 1")[0].execution_result.return_value == 2  # the next one goes on


def test_tests_whose_sandbox_is_gone_make_it_unusable_too(lost_sandbox: Grader, make: Make) -> None:
    (seen,) = play(make(lost_sandbox), "final_answer()")

    assert math.isnan(seen.reward)
    assert seen.metadata["end"]["reason"] == "lost"
    assert "A session for grading could not be started" in seen.metadata["end"]["cause"]


def test_through_make_the_result_is_not_valid() -> None:
    with ew.make(create_codeact_env(grader=judge_that_says_nothing())) as env:
        env.reset()
        result = env.step(CodeAction(code="final_answer('hello')"))

    assert (result.valid, result.end.reason, result.end.blame) == (False, "lost", "infrastructure")
    assert math.isnan(result.reward)


def test_a_grader_may_serve_several_environments(make: Make) -> None:
    tests = HiddenTests("assert f() == 1", limits=Limits(timeout_s=4.0))
    first, second = create_codeact_env(grader=tests), make(tests)

    with first:
        assert play(first, "def f(): return 1\nfinal_answer()")[0].reward == 1.0
    assert play(second, "def f(): return 1\nfinal_answer()")[0].reward == 1.0


def test_closing_one_environment_does_not_stop_the_grading_of_another() -> None:
    tests = HiddenTests("assert f() == 1", limits=Limits(timeout_s=3.0), per_case_timeout_s=10.0)
    attempt = Attempt(code="", program=PROGRAM, result=ew.ExecutionResult(success=True))

    async def race() -> Grade:
        await tests.grade(attempt)
        running = asyncio.create_task(tests.grade(attempt))
        await asyncio.sleep(0)
        while not running.done():
            await tests.close()
            await asyncio.sleep(0)
        await tests.close()
        return running.result()

    assert asyncio.run(race()).passed


PROGRAM = "def f():\n    return sum(range(10**6)) // 499999500000"


def test_the_environment_closes_its_grader() -> None:
    watching = Watching()

    create_codeact_env(grader=watching).close()

    assert watching.closed == 1


def test_weights_add_up() -> None:
    both = Weighted({NumericMatch(42): 3, ExactMatch("42"): 1})

    grade = graded(both, 42)

    assert (grade.score, grade.passed) == (0.75, False)
    assert grade.details["parts"] == [
        {"grader": "NumericMatch", "score": 1.0, "passed": True},
        {"grader": "ExactMatch", "score": 0.0, "passed": False},
    ]
    assert graded(Weighted({NumericMatch(42): 0.1, ExactMatch(42): 0.2}), 42).score == 1.0


def test_if_one_grader_fails_the_weighted_grade_fails() -> None:
    with pytest.raises(GradingError):
        graded(Weighted({NumericMatch(42): 1, Broken(GradingError("closed")): 1}), 42)


@pytest.mark.parametrize(
    "weights", [{}, {NumericMatch(1): 0}, {NumericMatch(1): -1}, {"a": 1}, {NumericMatch(1): True}]
)
def test_invalid_weights_are_refused(weights: Any) -> None:
    with pytest.raises(OptionError, match="Weighted"):
        Weighted(weights)


def test_closing_closes_all_of_them() -> None:
    graders = [Watching(), Watching()]

    asyncio.run(Weighted(dict.fromkeys(graders, 1.0)).close())

    assert [one.closed for one in graders] == [1, 1]
