"""The code that coding.py has run, and what it must print. Both sides import this module."""

from __future__ import annotations

PIECES = {
    "print": ("print('hello')", "hello"),
    "loop": ("total = 0\nfor i in range(1000):\n    total += i * i\nprint(total)", "332833500"),
    "fib": (
        "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nprint(fib(18))",
        "2584",
    ),
}
"""By the name of a comparison."""

ENDLESS = "while True: pass"


def check(piece: str, stdout: str, exit_code: int) -> None:
    """Raise unless the code came to what it must."""
    if exit_code or stdout.strip() != PIECES[piece][1]:
        raise ValueError(f"{piece} printed {stdout!r}, with exit code {exit_code}")
