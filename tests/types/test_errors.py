"""The tree of errors: as its docstring draws it, and over a process boundary."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from envweave import errors
from envweave.errors import EnvWeaveError

EVERY = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, EnvWeaveError) and one.__module__ == errors.__name__
]
LINE = re.compile(r"^    (?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +\((?P<builtin>\w+)\))?")


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Return, by name, the parent and the builtin that the module's docstring says."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match:
            depth = len(match["indent"]) // 4
            above = [*above[:depth], match["name"]]
            tree[match["name"]] = (above[depth - 1] if depth else None, match["builtin"])
    return tree


def test_the_docstring_draws_every_error_and_no_other():
    assert sorted(drawn_tree()) == sorted(one.__name__ for one in EVERY)


@pytest.mark.parametrize("error", EVERY)
def test_an_error_derives_from_the_bases_in_the_docstring(error):
    parent, builtin = drawn_tree()[error.__name__]
    bases = [base.__name__ for base in error.__bases__]

    assert bases == [name for name in (parent or "Exception", builtin) if name is not None]
    assert builtin is None or issubclass(error, getattr(builtins, builtin))


@pytest.mark.parametrize("error", EVERY)
def test_an_error_survives_pickling(error):
    twin = pickle.loads(pickle.dumps(error("what, why, and what to do")))

    assert type(twin) is error
    assert (str(twin), twin.args) == ("what, why, and what to do", ("what, why, and what to do",))


@pytest.mark.parametrize("error", EVERY)
def test_an_error_has_a_docstring_of_its_own(error):
    assert (error.__doc__ or "").endswith(".")


def test_a_suggestion_names_the_nearest_or_nothing():
    assert errors.suggest("dleta", ["delta", "other"]) == " Did you mean 'delta'?"
    assert errors.suggest("zzz", ["delta"]) == errors.suggest("delta", []) == ""


def test_a_missing_extra_gives_the_exact_command():
    error = errors.MissingExtraError.for_extra("Gymnasium is missing.", "gym")

    assert str(error).endswith("Install it with: pip install 'envweave[gym]'")


def test_a_formatted_error_contains_its_source_line():
    try:
        raise KeyError("lost")
    except KeyError as error:
        words = errors.format_error(error)

    assert re.fullmatch(r"KeyError: 'lost' \(test_errors\.py:\d+\)", words)
    assert errors.format_error(ValueError()) == "ValueError"
    assert errors.format_error(errors.SeedError("no seed")) == "SeedError: no seed"
