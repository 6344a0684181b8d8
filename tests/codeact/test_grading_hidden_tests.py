"""Hidden tests: programs are run again in fresh sessions."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from codeact_environments import graded, lease_grading_sandbox

from envweave.codeact import HiddenTests
from envweave.errors import OptionError, TaskError
from envweave.sandbox import Limits, Sandbox

FIB = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"


@pytest.fixture(autouse=True, scope="module")
def sandbox() -> Iterator[None]:
    """The sandbox that all these graders share, kept over the tests."""
    lease = lease_grading_sandbox()
    yield
    lease.release()


@pytest.mark.parametrize(
    ("cases", "options"),
    [
        ({"call": "fib(10)", "expected": 55}, {}),
        ([{"args": [10], "expected": 55}], {"entry": "fib"}),
        ([{"kwargs": {"n": 10}, "expected": 55}], {"entry": "fib"}),
        ("assert fib(10) == 55\nassert fib(1) == 1", {}),
        (["assert fib(10) == 55", {"call": "fib(2)", "expected": 1}], {}),
    ],
)
def test_a_program_that_passes_its_cases_scores_one(cases: Any, options: dict[str, Any]) -> None:
    grade = graded(HiddenTests(cases, **options), program=FIB)

    assert (grade.score, grade.passed) == (1.0, True)
    assert set(grade.details["cases"]) == {"ok"}


def test_all_mode_scores_zero_and_stops_at_the_first_failure() -> None:
    cases = "assert fib(1) == 1\nassert fib(2) == 2\nassert fib(3) == 2"

    grade = graded(HiddenTests(cases), program=FIB)

    assert (grade.score, grade.passed) == (0.0, False)
    assert grade.details == {"ok": 1, "total": 3, "cases": ["ok", "failed", "skipped"]}


def test_share_mode_scores_the_share_of_cases_that_pass() -> None:
    cases = "assert fib(1) == 1\nassert fib(2) == 2\nassert fib(3) == 2\nassert fib(4) == 3"

    grade = graded(HiddenTests(cases, score="share"), program=FIB)

    assert (grade.score, grade.passed) == (0.75, False)
    assert grade.details == {"ok": 3, "total": 4, "cases": ["ok", "failed", "ok", "ok"]}


def test_a_failed_case_is_described_without_text_of_the_agent() -> None:
    program = """
import os
class Leak(Exception): pass
def f(n):
    if n == 1: raise type(f"input_was_{n}", (Exception,), {})
    if n == 2: os._exit(3)
    if n == 3:
        while True: pass
    return object() if n == 4 else n
"""
    cases = [{"args": [n], "expected": 5} for n in (1, 2, 3, 4, 5)]

    tests = HiddenTests(cases, entry="f", score="share", per_case_timeout_s=0.5)
    grade = graded(tests, program=program)

    assert grade.details["cases"] == ["error", "ended", "timeout", "failed", "ok"]


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("def f(: pass", "error"),
        ("raise SystemExit(0)", "error"),
        ("import os\nos._exit(0)", "ended"),
        ("while True: pass", "timeout"),
        ("x = 1", "error"),
        ("", "error"),
    ],
)
def test_a_program_that_does_not_complete_passes_nothing(program: str, outcome: str) -> None:
    tests = HiddenTests("assert f() == 1\nassert f() == 2", score="share", per_case_timeout_s=0.5)

    grade = graded(tests, program=program)

    assert grade.score == 0.0
    assert grade.details["cases"] == [outcome, outcome]


def test_cases_do_not_share_state() -> None:
    program = """
import os
seen = []
def f(n):
    seen.append(n)
    open("count", "a").write("x")
    return len(seen) + os.path.getsize("count")
"""

    tests = HiddenTests([{"args": [n], "expected": 2} for n in range(3)], entry="f")

    assert graded(tests, program=program).passed


def test_a_program_finds_modules_and_final_answer_as_in_its_episode() -> None:
    program = "def f(): return math.sqrt(16) + len(json.dumps([]))\nfinal_answer('ready')"

    assert graded(HiddenTests("assert f() == 6"), program=program).passed


def test_a_program_finds_file_tools_if_it_had_them() -> None:
    program = "file_write('a.txt', 'hello')\ndef f(): return file_read('a.txt')"

    assert graded(HiddenTests("assert f() == 'hello'", files=True), program=program).passed
    assert not graded(HiddenTests("assert f() == 'hello'"), program=program).passed


def test_random_numbers_are_the_same_in_every_case() -> None:
    with Sandbox() as sandbox, sandbox.session(seed=0) as session:
        drawn = session.run("import random; random.random()").return_value

    tests = HiddenTests([{"call": "random.random()", "expected": drawn}] * 2)

    assert graded(tests).details["cases"] == ["ok", "ok"]


@pytest.mark.parametrize(
    "program",
    [
        "n = int(input())\nprint(n * 2, input())",
        "import sys\nn, word = sys.stdin.read().split()\nprint(int(n) * 2, word)\nsys.exit()",
        "n, word = open(0).read().split()\nprint(int(n) * 2, word + '  \\n\\n')",
        "import sys\nn, word = sys.stdin.buffer.read().split()\n"
        "if __name__ == '__main__':\n    sys.stdout.write(f'{int(n) * 2} {word.decode()}')",
    ],
)
def test_a_whole_program_gets_input_and_its_output_is_compared(program: str) -> None:
    cases = [{"stdin": "21\nyes\n", "stdout": "42 yes"}, {"stdin": "4\nü\n", "stdout": "8 ü\n"}]

    assert graded(HiddenTests(cases), program=program).details["cases"] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("print(43)", "failed"),
        ("print(42)\nraise SystemExit(1)", "error"),
        ("print(42)\n1 / 0", "error"),
        ("print(42)\nimport os\nos._exit(0)", "ended"),
        ("input()", "error"),
        ("print(42, end='\\n' * 10**6)", "failed"),
    ],
)
def test_a_whole_program_must_exit_successfully(program: str, outcome: str) -> None:
    grade = graded(HiddenTests({"stdout": "42"}), program=program)

    assert grade.details["cases"] == [outcome]


def test_arguments_are_plain_data_of_every_kind() -> None:
    program = "def f(*args, **kwargs): return [args, kwargs]"
    args = [None, 1.5, "é", b"x", (1, 2), {3}, {"a": [1]}, np.arange(3), float("inf")]
    case = {"args": args, "kwargs": {"k": -1}, "expected": [args, {"k": -1}]}

    assert graded(HiddenTests(case, entry="f"), program=program).passed


def test_the_called_function_may_be_a_method() -> None:
    program = "class Solution:\n    def add(self, a, b): return a + b"

    tests = HiddenTests({"args": [1, 2], "expected": 3}, entry="Solution().add")

    assert graded(tests, program=program).passed


def test_numbers_may_have_a_tolerance() -> None:
    case = {"call": "f()", "expected": [3.14, 2.72], "tolerance": 0.01}

    assert graded(HiddenTests(case), program="def f(): return 3.1416, 2.7183").passed
    assert not graded(HiddenTests(case), program="def f(): return 3.1, 2.7183").passed


def test_none_passes_only_where_none_was_returned() -> None:
    tests = "assert f() is None"

    assert graded(HiddenTests(tests), program="def f(): pass").passed
    assert not graded(HiddenTests(tests), program="def f(): return object()").passed


def test_the_program_may_be_the_answer() -> None:
    tests = HiddenTests("assert fib(7) == 13", source="answer")

    assert graded(tests, FIB, program="1 / 0").passed
    assert graded(tests, 13, program=FIB).details["cases"] == ["error"]


def test_cases_may_come_from_the_task() -> None:
    tests = HiddenTests(from_task="tests", entry="fib")

    assert graded(tests, program=FIB, private={"tests": [{"args": [7], "expected": 13}]}).passed
    assert graded(tests, program=FIB, private={"tests": "assert fib(7) == 13"}).passed


@pytest.mark.slow  # starts several sandboxes
def test_errors_in_the_cases_of_a_task_are_reported_without_quoting_them() -> None:
    tests = HiddenTests(from_task="tests")

    with pytest.raises(TaskError) as raised:
        graded(tests, program=FIB, private={"tests": "assert fib(31337) == swordfish()"})

    assert "private['tests'] of task 't': case 1: line 1: neither side is a literal" in str(
        raised.value
    )
    assert "swordfish" not in str(raised.value)
    assert "31337" not in str(raised.value)


def test_limits_apply_to_the_grading_sessions() -> None:
    program = "def f(): return len(bytearray(100 * 2**20))"

    tests = HiddenTests("assert f() == 104857600", limits=Limits(memory_bytes=64 << 20))

    assert graded(tests, program=program).details["cases"] == ["error"]


def test_a_closed_grader_can_be_used_again() -> None:
    tests = HiddenTests("assert fib(7) == 13")

    assert graded(tests, program=FIB).passed
    assert graded(tests, program=FIB).passed


def test_a_grader_can_be_sent_to_another_process() -> None:
    tests = pickle.loads(pickle.dumps(HiddenTests("assert fib(7) == 13")))

    assert graded(tests, program=FIB).passed


def test_the_expected_value_is_not_in_a_repr() -> None:
    assert "swordfish" not in repr(HiddenTests("assert f() == 'swordfish'"))


@pytest.mark.parametrize(
    ("cases", "options", "message"),
    [
        ([], {}, "expected at least one case"),
        (5, {}, "expected a list, got int"),
        ([5], {}, "case 1: expected a dict or text, got int"),
        ({"call": "f()", "exepcted": 1}, {}, "unknown key 'exepcted'. Did you mean 'expected'?"),
        ({"call": "f()"}, {}, "the keys 'call' are not a valid combination"),
        ({"call": "f()", "args": [], "expected": 1}, {}, "are not a valid combination"),
        ({"expected": 1}, {}, "are not a valid combination"),
        ({"stdin": "x"}, {}, "are not a valid combination"),
        ({"stdout": "x", "call": "f()"}, {}, "are not a valid combination"),
        ({"stdout": 5}, {}, "stdin and stdout must be text"),
        ({"args": [1], "expected": 1}, {}, 'name the function to call with entry="f"'),
        ({"args": 1, "expected": 1}, {"entry": "f"}, "args must be a list"),
        (
            {"kwargs": {1: 1}, "expected": 1},
            {"entry": "f"},
            "the keys of kwargs must be identifiers",
        ),
        ({"args": [object()], "expected": 1}, {"entry": "f"}, "inputs['args'][0]"),
        ({"call": "f(", "expected": 1}, {}, "not a Python expression"),
        ({"call": 5, "expected": 1}, {}, "call must be an expression"),
        ({"call": "f() == 1", "expected": True}, {}, "compares within an expression"),
        ({"call": "isinstance(f(), int)", "expected": True}, {}, "isinstance() would run in"),
        (
            {"call": "f()", "expected": object()},
            {},
            "expected: answers cannot be compared with a object",
        ),
        ({"call": "f()", "expected": 1, "tolerance": -1}, {}, "tolerance=-1"),
        ("assert f() == 1", {"entry": "f("}, "entry='f('"),
        ("assert f() == 1", {"entry": 5}, "entry=5"),
        ("assert f() == 1", {"score": "most"}, "score='most'"),
        ("assert f() == 1", {"source": "file"}, "source='file'"),
        ("assert f() == 1", {"per_case_timeout_s": 0}, "per_case_timeout_s=0"),
        ("assert f() == 1", {"preload": "numpy"}, "preload='numpy'"),
        ("assert f() == 1", {"preload": ["no_such_module"]}, "no module 'no_such_module'"),
        ("assert f() == 1", {"isolation": "some"}, "isolation='some'"),
        ("assert f() == 1", {"from_task": "tests"}, "and got both"),
    ],
)
def test_cases_that_cannot_be_run_are_refused(
    cases: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        HiddenTests(cases, **options)
