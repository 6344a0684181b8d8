"""The state has names, types and short reprs of any variables."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from codeact_environments import LOCAL_CLIENTS, QUICK, REMOTE_CLIENTS, keep_sandbox, open_client

from envweave import CodeState
from envweave.codeact import Variable
from envweave.codec import to_plain

EXECUTORS = ("sandbox", "inproc")

LOOPS = "class Loops:\n def __repr__(self):\n  while True: time.sleep(0.01)\n"
HANGS = (
    "class Hangs:\n def __repr__(self):\n  while True:\n   try: time.sleep(1)\n"
    "   except BaseException: 0\n"
)
RAISES = "class Raises:\n def __repr__(self): raise RuntimeError('no')\n"
EXITS = "class Exits:\n def __repr__(self): raise SystemExit\n"
HUGE = "class Huge:\n def __repr__(self): return 'h' * 10_000_000\n"
LIES = (
    "class list:\n def __repr__(self): return 'a lie'\n"
    "class Meta(type):\n"
    " __name__ = property(lambda self: 1 / 0)\n"
    " __mro__ = property(lambda self: 1 / 0)\n"
    "class Text(str):\n def __getitem__(self, i): return self\n __len__ = lambda self: 1\n"
    "class Lies(metaclass=Meta):\n def __repr__(self): return Text('l' * 500)\n"
)


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    with keep_sandbox(limits=QUICK):
        yield


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("name", [*LOCAL_CLIENTS, *REMOTE_CLIENTS])
def test_the_state_shows_names_types_and_short_reprs(name: str) -> None:
    with open_client(name, limits=QUICK) as way:
        way.reset()
        fresh = way.state()
        way.step("x = [1, 2]\ntext = 'a' * 500\n_hidden = 1\nimport math\ndef f(): pass")
        way.step("1 / 0")
        shown = way.state()

    assert to_plain(fresh.variables) == {}
    assert to_plain(shown.variables) == {
        "x": {"type": "list", "repr": "[1, 2]"},
        "text": {"type": "str", "repr": "'" + "a" * 37 + "..." + "a" * 38 + "'"},
        "f": {"type": "function", "repr": "<function f>"},
    }
    assert (fresh.step_count, shown.step_count) == (0, 2)
    assert (fresh.last_exit_code, shown.last_exit_code) == (0, 1)
    assert shown.tools == ["add", "later"]
    assert shown.executor == "sandbox"
    assert shown.isolation in ("namespace", "landlock")
    assert shown.episode_id is not None


def test_the_state_before_the_first_episode_and_after_a_fatal_step_shows_no_names() -> None:
    with open_client("direct", limits=QUICK) as way:
        before = way.state()
        way.reset()
        way.step("x = 1")
        way.step("import os; os._exit(1)")
        after = way.state()

    assert before.variables == after.variables == {}
    assert after.last_exit_code == 137


def test_reading_the_state_changes_nothing() -> None:
    with open_client("direct", limits=QUICK) as way:
        way.reset(seed=3)
        way.step("x = 1\nbefore = set(globals())")
        way.state()
        way.state()
        after = way.step("sorted(set(globals()) - before), random.random()")
        way.reset(seed=3)
        unseen = way.step("[], random.random()")

    assert after.value == (["before"], unseen.value[1])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        (RAISES, "Raises", "<Raises instance>"),
        (EXITS, "Exits", "<Exits object, whose repr raised SystemExit>"),
        (HUGE, "Huge", "h" * 38 + "..." + "h" * 39),
        pytest.param(LOOPS, "Loops", "<Loops object>", marks=pytest.mark.slow),
        (LIES, "list", "a lie"),
        (LIES, "Lies", "l" * 80),
    ],
)
def test_a_misbehaving_value_does_not_hide_the_other_variables(
    executor: str, source: str, name: str, expected: str
) -> None:
    with open_client("direct", executor=executor, limits=QUICK) as way:
        way.reset()
        way.step(f"{source}\nfirst = 1\nit = {name}()\nlast = 'z'")

        shown = way.state().variables
        after = way.step("first")

    assert shown["first"] == Variable("int", "1")
    assert shown["it"] == Variable(name, expected)
    assert shown["last"] == Variable("str", "'z'")
    assert after.value == 1


@pytest.mark.slow  # starts several sandboxes
def test_an_endless_repr_ends_its_own_episode() -> None:
    with open_client("make", limits=QUICK, fatal_reward=-1.0) as way:
        way.reset()
        way.step(f"{HANGS}it = Hangs()")

        shown = way.state()
        last = way.step("1 + 1")
        way.reset()
        after = way.step("1 + 1")

    assert shown.variables == {}
    assert last.end is not None
    assert (last.end["reason"], last.end["blame"]) == ("error", "agent")
    assert last.reward == -1.0
    assert after.value == 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_of_many_names_two_hundred_are_shown_and_long_ones_are_cut(executor: str) -> None:
    with open_client("direct", executor=executor, limits=QUICK) as way:
        way.reset()
        way.step(f"{'n' * 300} = 1\nfor i in range(500): globals()[f'name{{i}}'] = i")

        shown = way.state().variables

    assert len(shown) == 200
    assert list(shown)[:3] == ["n" * 100, "i", "name0"]


def test_the_state_is_plain_data_without_live_objects() -> None:
    with open_client("direct", limits=QUICK) as way:
        way.reset()
        way.step("import threading; lock = threading.Lock(); own = lambda: lock; big = 10 ** 5000")

        shown = way.state()

    assert isinstance(shown, CodeState)
    assert json.loads(json.dumps(to_plain(shown)))["variables"].keys() == {"lock", "own", "big"}
    assert " at 0x" not in str(shown)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_code_that_replaces_repr_affects_only_its_own_state(executor: str) -> None:
    with open_client("direct", executor=executor, limits=QUICK) as way:
        way.reset()
        way.step("globals = lambda: {1: 2, 'made_up': [], **{'x' * 9: {}}}\nreal = 5")

        shown = way.state().variables
        after = way.step("real")

    assert all(isinstance(one, Variable) for one in shown.values())
    assert after.value == 5
