"""Code runs in a session as it would in plain Python, and keeps its variables."""

from __future__ import annotations

import pytest
from sandbox_sessions import Child, running

from envweave.sandbox.protocol.messages import Begin, Branch, Get, RunFinished, ToolSignature


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    with running(tmp_path_factory.mktemp("work")) as one:
        yield one


def test_the_last_expression_is_the_value(child: Child):
    finished = child.run("x = 20\nx + 1")

    assert finished == RunFinished(finished.id, "", "", 21, True, "21", None, False, False)


@pytest.mark.parametrize("code", ["", "# nothing", "y = 1", "None", "def f(): return 1", "if 1: 2"])
def test_code_that_does_not_end_in_a_value_has_none(child: Child, code):
    finished = child.run(code)

    assert (finished.value, finished.shown, finished.failure) == (None, None, None)


def test_variables_persist_in_the_next_cell(child: Child):
    child.run("kept = [1]")
    child.run("kept.append(2)")

    assert child.value("kept") == [1, 2]


def test_a_value_that_is_not_plain_is_shown_but_not_sent(child: Child):
    finished = child.run("(one for one in 'x')")

    assert (finished.value, finished.plain, finished.failure) == (None, False, None)
    assert finished.shown.startswith("<generator object <genexpr> at")


def test_a_value_too_large_to_send_is_shown_but_not_sent(child: Child):
    finished = child.run("'x' * (5 << 20)")

    assert (finished.value, finished.plain, finished.failure) == (None, False, None)
    assert finished.shown.startswith("'xxxx")
    assert len(finished.shown) <= 16 << 10


def test_an_exception_is_reported_with_its_line_and_without_sandbox_frames(child: Child):
    finished = child.run("def half(n):\n    return n / 0\n\nhalf(1)")

    number = finished.failure.traceback.split("<cell ")[1].split(">")[0]
    assert finished.failure.type == "ZeroDivisionError"
    assert finished.failure.message == "division by zero"
    assert finished.failure.traceback == (
        "Traceback (most recent call last):\n"
        f'  File "<cell {number}>", line 4, in <module>\n'
        "    half(1)\n"
        f'  File "<cell {number}>", line 2, in half\n'
        "    return n / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_a_syntax_error_shows_its_line(child: Child):
    finished = child.run("x = 1\nif x\n    y")

    assert finished.failure.type == "SyntaxError"
    assert "line 2\n    if x\n        ^\nSyntaxError: expected ':'" in finished.failure.traceback
    assert "Traceback" not in finished.failure.traceback


def test_causes_notes_and_groups_are_shown(child: Child):
    finished = child.run(
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    second = ExceptionGroup('both', [ValueError('a'), KeyError('b')])\n"
        "    second.add_note('a note')\n    raise second from error"
    )

    for part in ("ZeroDivisionError", "direct cause", "both", "ValueError: a", "a note"):
        assert part in finished.failure.traceback
    assert "envweave" not in finished.failure.traceback


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "exit()", "import sys; sys.exit('bye')"])
def test_sys_exit_is_an_exception_and_the_session_lives(child: Child, code):
    finished = child.run(code)

    assert finished.failure.type in ("SystemExit", "NameError")
    assert child.value("1") == 1


def test_infinite_recursion_is_an_exception(child: Child):
    finished = child.run("def deep(n): return deep(n + 1)\ndeep(0)")

    assert finished.failure.type == "RecursionError"
    assert "Previous line repeated" in finished.failure.traceback


def test_cells_may_await_and_tasks_continue_in_the_next_cell(child: Child):
    child.run(
        "import asyncio\nqueue = asyncio.Queue()\n"
        "task = asyncio.ensure_future(queue.get())\nawait asyncio.sleep(0)"
    )

    assert child.value("await queue.put('sent')\nawait task") == "sent"


def test_asyncio_run_works_in_a_cell_that_awaits_nothing(child: Child):
    assert child.value("import asyncio\nasync def two(): return 2\nasyncio.run(two())") == 2


def test_an_exception_from_an_awaited_call_is_reported(child: Child):
    finished = child.run("async def fail(): 1 / 0\nawait fail()")

    assert finished.failure.type == "ZeroDivisionError"
    assert "in fail" in finished.failure.traceback


def test_classes_of_a_cell_can_be_pickled(child: Child):
    child.run("import pickle\nclass Thing:\n    def __init__(self): self.a = 1")

    assert child.value("pickle.loads(pickle.dumps(Thing())).a") == 1


def test_dataclasses_and_hints_see_the_names_of_the_session(child: Child):
    child.run("import dataclasses, typing\nclass Size(int): pass")
    child.run("@dataclasses.dataclass\nclass Box:\n    size: 'Size'")

    assert child.value("typing.get_type_hints(Box)['size'] is Size") is True


def test_the_source_of_functions_and_classes_is_available(child: Child):
    child.run("def double(n):\n    return 2 * n\n\nclass Doubler:\n    def go(self): return 2\n")

    assert (
        child.value("import inspect\ninspect.getsource(double)")
        == "def double(n):\n    return 2 * n\n"
    )
    assert (
        child.value("inspect.getsource(Doubler)") == "class Doubler:\n    def go(self): return 2\n"
    )


def test_future_imports_apply_to_later_cells(child: Child):
    assert child.value("def before(a: int): pass\nbefore.__annotations__['a'] is int")
    child.run("from __future__ import annotations")

    assert child.value("def after(a: int): pass\nafter.__annotations__['a']") == "int"


def test_the_program_is_main(child: Child):
    child.run("import sys")

    assert child.value("sys.modules['__main__'].__dict__ is globals()") is True
    assert child.value("__name__, '__file__' in globals()") == ("__main__", False)


def test_running_the_same_cell_twice_runs_it_twice(child: Child):
    child.run("count = 0")

    values = [child.value("count += 1\ncount") for _ in range(3)]

    assert values == [1, 2, 3]


def test_more_cells_than_the_cache_holds_all_run(child: Child):
    assert [child.value(f"{n} + 1") for n in range(400)] == list(range(1, 401))


@pytest.mark.parametrize("value", [None, [1, (2, {3})], {"a": b"x"}, {1: 2.5}, 2**100])
def test_values_are_put_and_got_by_name(child: Child, value):
    child.put("given", value)

    assert child.get("given") == value
    assert child.value("given") == value


def test_arrays_are_put_and_got(child: Child):
    np = pytest.importorskip("numpy")
    child.put("table", np.arange(6).reshape(2, 3))

    child.run("table = table * 2")

    assert child.get("table").tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_missing_name_is_reported(child: Child):
    reply = child.ask(Get, "nowhere")

    assert (reply.failure.type, reply.failure.message) == (
        "NameError",
        "name 'nowhere' is not defined",
    )


def test_a_non_plain_variable_is_reported_with_its_path(child: Child):
    child.run("mixed = {'a': [1, object()]}")

    reply = child.ask(Get, "mixed")

    assert reply.failure.type == "PlainDataError"
    assert reply.failure.message.startswith("mixed['a'][1]: an object is not plain data")


def test_a_variable_too_large_to_send_is_reported(child: Child):
    child.run("large = b'x' * (5 << 20)")

    reply = child.ask(Get, "large")

    assert reply.failure.type == "PlainDataError"
    assert "too large" in reply.failure.message


def test_a_host_that_hangs_up_ends_the_session(tmp_path):
    with running(tmp_path) as one:
        one.channel.close()

        assert one.process.wait(30) == 0


def test_the_seed_applies_to_random_and_to_numpy_even_if_imported_later(tmp_path):
    import random

    import numpy as np

    code = (
        "import random\ndrawn = [random.random()]\n"
        "import numpy as np\ndrawn + [float(np.random.random())]"
    )
    with running(tmp_path, seed=11) as one:
        drawn = one.value(code)

    assert drawn == [random.Random(11).random(), float(np.random.RandomState(11).random_sample())]


def test_sessions_without_a_seed_draw_different_numbers(tmp_path):
    drawn = []
    for _ in range(2):
        with running(tmp_path, seed=None) as one:
            drawn.append(one.value("import random\nrandom.getrandbits(64)"))

    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5, -3, 2**100])
def test_any_seed_is_honored_and_different_seeds_differ(child: Child, seed):
    child.run("import random, numpy as np\nfrom envweave.sandbox.inside.seeding import reseed")
    draw = "reseed({})\nrandom.random(), float(np.random.random())"

    first, again, other = (child.value(draw.format(one)) for one in (seed, seed, seed + 1))

    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_a_warm_session_begins_with_the_seed_and_tools_of_its_caller(tmp_path):
    import random

    with running(tmp_path, seed=None) as one:
        one.send(Begin(5, [ToolSignature("lookup", "(query)", "")]))
        finished = one.run(
            "import random\n[random.random(), lookup(1)]", lookup=lambda query: query
        )

    assert finished.value == [random.Random(5).random(), 1]


def test_a_session_that_cannot_be_branched_reports_it(child: Child):
    assert child.ask(Branch, None).failure.type == "BranchError"
