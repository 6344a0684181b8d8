"""Only the right answer is rewarded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from codeact_environments import code_observation, failed_code_observation, parts_of

import envweave as ew
from envweave import CodeObservation
from envweave.errors import BadReturnError, OptionError


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    with ew.create_codeact_env(preload=["numpy"]) as one:
        yield one


RIGHT = {
    "an int": "6 * 7",
    "a float": "42.0",
    "a float that is a little off": "sum([0.1] * 420)",
    "an int of numpy's": "import numpy as np\nnp.int64(42)",
    "a float of numpy's": "import numpy as np\nnp.float32(42)",
    "an array of no dimensions": "import numpy as np\nnp.array(42)",
    "the number inside of a subclass, whatever that says": (
        "class F(float):\n    def __eq__(self, other): return False\nF(42)"
    ),
}
WRONG = {
    "another number": "41",
    "a number that is off": "42.001",
    "nothing": "x = 42",
    "None": "None",
    "printed": "print(42)",
    "text": "'42'",
    "bytes": "b'42'",
    "a list of it": "[42]",
    "an array of it": "import numpy as np\nnp.array([42])",
    "an array of many": "import numpy as np\nnp.full(9, 42)",
    "a complex number": "42 + 0j",
    "a truth": "True",
    "a decimal": "import decimal\ndecimal.Decimal(42)",
    "a fraction": "import fractions\nfractions.Fraction(42)",
    "nan": "float('nan')",
    "infinity": "float('inf')",
    "a huge number": "10 ** 5000",
    "an object that equals everything": (
        "class E:\n    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0\n    __rsub__ = __sub__\n"
        "    def __float__(self): return 42.0\nE()"
    ),
    "an int that equals everything": (
        "class I(int):\n    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0\n    __rsub__ = __sub__\n"
        "    def __index__(self): return 42\n    def __int__(self): return 42\nI(7)"
    ),
    "a float that equals everything": (
        "class F(float):\n    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0.0\n    def __float__(self): return 42.0\nF(7)"
    ),
    "an array that equals everything": (
        "import numpy as np\nclass A(np.ndarray):\n"
        "    def __eq__(self, other): return True\n    def item(self): return 42\n"
        "np.array(7).view(A)"
    ),
    "a list that equals everything": (
        "class L(list):\n    def __eq__(self, other): return True\nL()"
    ),
    "a function": "lambda: 42",
    "itself within itself": "x = []\nx.append(x)\nx",
    "code that raises": "42\n1 / 0",
    "code that is none": "42 +",
}


@pytest.mark.parametrize("code", RIGHT.values(), ids=RIGHT)
def test_the_right_answer_is_rewarded(env: Any, code: str) -> None:
    env.transform = ew.MathProblemTransform(42)
    env.reset()

    shown = env.step(ew.CodeAction(code=code))

    assert (shown.reward, parts_of(shown)) == (1.0, {"math": 1.0})


@pytest.mark.parametrize("code", WRONG.values(), ids=WRONG)
def test_no_other_answer_is_rewarded(env: Any, code: str) -> None:
    env.transform = ew.MathProblemTransform(42, wrong=-0.5)
    env.reset()

    shown = env.step(ew.CodeAction(code=code))

    assert (shown.reward, parts_of(shown)) == (-0.5, {"math": -0.5})


def test_the_answer_may_have_any_plain_form() -> None:
    expected = [
        ("text", "text"),
        ([1, [2.0, "x"]], (1, [2, "x"])),
        ({"a": 1}, {"a": 1.0}),
        ({1, 2}, {2, 1}),
        (True, True),
        (np.array([1.0, 2.0]), [1, 2]),
        (np.float64(0.5), 0.5),
    ]

    rewards = [
        ew.MathProblemTransform(want)(code_observation(value=got)).reward for want, got in expected
    ]

    assert rewards == [1.0] * len(expected)


def test_the_part_is_set_and_the_others_stay() -> None:
    transform = ew.MathProblemTransform(42, right=2.0, part="answer")

    shown = transform(transform(code_observation(reward=0.25)))

    assert (shown.reward, parts_of(shown)) == (2.25, {"base": 0.25, "answer": 2.0})


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    ("expected", "answer", "tolerance", "reward"),
    [
        (10**12, 10**12 + 1, 1e-9, 0.0),
        (10**12, 10**12 + 1, 1, 1.0),
        (10**12, float(10**12 + 1), 1e-9, 1.0),
        (42, 41, 1, 1.0),
        (3.14159, 3.14, 1e-2, 1.0),
        (3.14159, 3.14, 0, 0.0),
        (0, 1e-10, 1e-9, 1.0),
    ],
)
def test_the_tolerance_is_a_choice(
    expected: float, answer: float, tolerance: float, reward: float
) -> None:
    transform = ew.MathProblemTransform(expected, tolerance=tolerance)

    assert transform(code_observation(value=answer)).reward == reward


def test_text_counts_as_the_number_it_spells_if_asked_for() -> None:
    transform = ew.MathProblemTransform(42, accept_text=True)

    rewards = [
        transform(code_observation(value=text)).reward
        for text in (" 42.0\n", "41", "42 apples", "x")
    ]

    assert rewards == [1.0, 0.0, 0.0, 0.0]


def test_the_last_printed_line_counts_if_asked_for_and_there_is_no_value() -> None:
    transform = ew.MathProblemTransform(42, accept_printed=True)
    printed = [
        code_observation(value=None, stdout="thinking\n 42 \n\n"),
        code_observation(value=None, stdout="42\ndone\n"),
        code_observation(value=None, stdout=""),
        code_observation(value=7, stdout="42\n"),
        code_observation(value=None, stdout="42\n", return_repr="<object>"),
        code_observation(value=42, stdout="7\n"),
    ]

    rewards = [transform(one).reward for one in printed]

    assert rewards == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_printed_text_is_compared_as_text_where_text_is_expected() -> None:
    transform = ew.MathProblemTransform("7", accept_printed=True)

    rewards = [
        transform(code_observation(value=None, stdout=text)).reward for text in ("7\n", "7.0\n")
    ]

    assert rewards == [1.0, 0.0]


def test_code_that_raised_is_wrong_whatever_its_value() -> None:
    forged = code_observation(value=42, success=False, exception_type="ZeroDivisionError")
    transform = ew.MathProblemTransform(42, accept_printed=True)

    assert [transform(one).reward for one in (forged, failed_code_observation())] == [0.0, 0.0]


def test_the_right_answer_ends_the_episode_if_asked_for() -> None:
    shown = [
        ew.MathProblemTransform(42, ends=ends)(code_observation(value=value)).done
        for ends, value in ((True, 42), (True, 41), (False, 42))
    ]

    assert shown == [True, False, False]


def test_an_end_set_by_the_environment_is_kept() -> None:
    ended = code_observation(value=41)
    ended.done = True

    assert ew.MathProblemTransform(42)(ended).done is True


def test_the_first_observation_of_an_episode_earns_nothing() -> None:
    shown = ew.MathProblemTransform(42, wrong=-1.0, ends=True)(CodeObservation(prompt="6 * 7?"))

    assert (shown.reward, shown.done, shown.metadata) == (None, False, {})


def test_a_step_of_empty_code_is_wrong(env: Any) -> None:
    env.transform = ew.MathProblemTransform(42, wrong=-1.0)
    env.reset()

    assert env.step(ew.CodeAction(code="")).reward == -1.0


SECRET = 918_273_645


def test_the_expected_answer_is_not_visible(env: Any) -> None:
    transform = ew.create_math_env_transform(expected_answer=SECRET)
    env.transform = transform
    first = env.reset()
    shown = env.step(ew.CodeAction(code="dir(), globals(), 41"))

    visible = [transform, *transform.transforms, first, shown, shown.metadata, env, env.state]

    assert [one for one in map(repr, visible) if str(SECRET) in one] == []


HUNT = """
import gc
wanted = 918_273_644 + len("x")
inside = lambda one: one.values() if isinstance(one, dict) else one
[
    1
    for held in gc.get_objects()
    if isinstance(held, (list, tuple, dict))
    for one in inside(held)
    if type(one) is int and one == wanted and one is not wanted
]
"""


def test_the_expected_answer_is_not_in_the_session(env: Any) -> None:
    env.transform = ew.MathProblemTransform(SECRET)
    env.reset()

    steps = [env.step(ew.CodeAction(code=code)) for code in (HUNT, f"x = [{SECRET}]", HUNT)]

    assert steps[0].execution_result.return_value == []
    assert steps[2].execution_result.return_value  # where it is, it is found


def test_it_can_be_sent_to_a_worker_process() -> None:
    sent = pickle.loads(pickle.dumps(ew.create_math_env_transform(42)))

    assert sent(code_observation()).reward == 1.05


@pytest.mark.parametrize(
    ("expected", "options", "words"),
    [
        (None, {}, "expected_answer must not be None"),
        (object(), {}, r"expected_answer=….*answers cannot be compared with a object"),
        ({"a": len}, {}, "answers cannot be compared with"),
        (1, {"right": 0.0}, "right must be greater than wrong"),
        (1, {"right": float("nan")}, "right=nan.* a reward must be a finite number"),
        (1, {"wrong": "0"}, "wrong='0'.* a reward must be a finite number"),
        (1, {"tolerance": -1}, "tolerance=-1.* a tolerance must be a number >= 0"),
        (1, {"part": None}, "part=None.* part must be a non-empty string"),
    ],
)
def test_invalid_options_are_refused(expected: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ew.MathProblemTransform(expected, **options)


def test_an_environment_that_runs_no_code_is_refused() -> None:
    with pytest.raises(BadReturnError, match="MathProblemTransform is for environments that run"):
        ew.MathProblemTransform(42)(ew.Observation())
