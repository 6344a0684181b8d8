"""pydantic-monty for sandbox.py: a part of Python, interpreted in Rust, in worker processes."""

from __future__ import annotations

from typing import Any

from pydantic_monty import Monty
from sandbox_box import Box
from sandbox_code import add

MOST = 4096
"""How many workers there may be: one a live session."""


class MontySession:
    """A session of the pool."""

    def __init__(self, pool: Monty, state: bytes | None = None) -> None:
        self.given = pool.checkout(limits={"max_suspensions": 2**31 - 1})
        self.given.__enter__()
        if state is not None:
            self.given.load_session(state)

    def run(self, code: str) -> Any:
        return self.given.feed_run(code, external_lookup={"add": add})

    def close(self) -> None:
        self.given.__exit__(None, None, None)


def open_monty() -> Box:
    pool = Monty(max_processes=MOST)
    pool.__enter__()
    return Box(
        lambda: MontySession(pool),
        branch=lambda session: MontySession(pool, session.given.dump()),
        close=lambda: pool.__exit__(None, None, None),
    )
