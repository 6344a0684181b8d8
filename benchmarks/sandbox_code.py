"""The code that everyone in sandbox.py runs, and what has to come of it."""

from __future__ import annotations

FIRST, FIRST_VALUE = "20 + 22", 42
"""What a new session is asked, to see that it is there."""

STATE = "x = 41\nrows = [[i, str(i)] for i in range(1000)]"
"""What a session holds, when its steps and its branches are measured."""

HOT, HOT_VALUE = "x + 1", 42

LOOP = "total = 0\nfor i in range(100_000):\n    total += i\ntotal"
LOOP_VALUE = 4999950000

CALLS = 100
TOOL = f"y = 0\nfor _ in range({CALLS}):\n    y = add(y, 1)\ny"
"""Calls the tool `add`, which belongs to the host."""


def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


def other(number: int) -> tuple[str, int]:
    """Return a line that was not run before, and its value."""
    return f"x + {number}", 41 + number


def cell(number: int) -> tuple[str, list[object]]:
    """Return eight lines that were not run before, and their value."""
    code = f"""total = {number}
counts = {{}}
for i in range(20):
    name = f"item {{i % 5}}"
    counts[name] = counts.get(name, 0) + i
    total += i * i
most = max(counts, key=lambda name: counts[name])
[total, most, counts[most]]"""
    return code, [number + 2470, "item 4", 46]
