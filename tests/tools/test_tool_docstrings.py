from typing import Any

import pytest

from envweave.tools import Tool

GOOGLE = """Find books.

    All libraries are searched.

    Args:
        words (str): What to look for,
            in any order.

            Two paragraphs are one line.
        *shelves: Where: these alone.
        limit: How many: at most.

    Returns:
        The titles.
    """

NUMPY = """Find books.

    Parameters
    ----------
    words : str
        What to look for,
        in any order.
    low, high : int, optional
        Years.
    bare

    Returns
    -------
    list
        The titles.
    """

REST = """Find books.

    :param words: What to look for,
        in any order.
    :param int limit: How many.
    :type words: str
    :returns: The titles.
    """


def find(words: str, shelves: Any = 0, limit: int = 3, low: int = 0, high: int = 0, bare: int = 0):
    raise NotImplementedError


def read(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the description of a tool with this docstring, and those of its parameters."""
    find.__doc__ = docstring
    tool = Tool.of(find)
    parameters = tool.parameters["properties"]
    described = {
        name: one["description"] for name, one in parameters.items() if "description" in one
    }
    return tool.description, described


def test_google_style_is_read() -> None:
    assert read(GOOGLE) == (
        "Find books.\n\nAll libraries are searched.\n\nReturns:\n    The titles.",
        {
            "words": "What to look for, in any order. Two paragraphs are one line.",
            "shelves": "Where: these alone.",
            "limit": "How many: at most.",
        },
    )


def test_numpy_style_is_read() -> None:
    assert read(NUMPY) == (
        "Find books.\n\nReturns\n-------\nlist\n    The titles.",
        {
            "words": "What to look for, in any order.",
            "low": "Years.",
            "high": "Years.",
        },
    )


def test_rest_style_is_read() -> None:
    assert read(REST) == (
        "Find books.\n\n:returns: The titles.",
        {"words": "What to look for, in any order.", "limit": "How many."},
    )


@pytest.mark.parametrize(
    "text",
    [
        "Plain words.",
        "A heading that is none.\n\nArgs:",
        "Words.\n\nArgs:\n    a paragraph, of no argument",
        "Parameters\nare many.",
        "Time: now.\n\nNote:\n    Be quick.",
    ],
)
def test_a_docstring_in_no_known_style_is_all_description(text: str) -> None:
    assert read(text) == (text, {})


@pytest.mark.parametrize("nothing", [None, "", "  \n  "])
def test_a_missing_docstring_gives_an_empty_description(nothing: str | None) -> None:
    assert read(nothing) == ("", {})
