"""Runs of nothing in the template, before the first session.

The interpreter rewrites a function in its first runs, and keeps what it learns beside it. What it
has learnt before the fork stays shared; else each session would copy those pages for itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from envweave.sandbox.messages import DESCRIPTOR, Run
from envweave.sandbox.plain import encode

if TYPE_CHECKING:
    from envweave.sandbox.inside.runner import Runner

_TIMES = 30
"""More than the interpreter takes to be done with a function."""

_ANSWER_BYTES = 1 << 16


def rehearse(runner: Runner) -> None:
    """Have a runner run cells and answer, as in a session, and forget them."""
    ours, theirs = socket.socketpair()
    with ours, theirs, _put_back((1, 2, DESCRIPTOR)):
        os.dup2(theirs.fileno(), DESCRIPTOR)
        for number in range(_TIMES):
            ours.sendall(encode(Run(number, f"_ = {number}\nprint(_)\n_")))
            runner.serve_next()
            ours.recv(_ANSWER_BYTES)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    runner.forget()


@contextlib.contextmanager
def _put_back(numbers: tuple[int, ...]) -> Iterator[None]:
    """Have these descriptors lead afterwards where they lead now, or nowhere."""
    copies: dict[int, int] = {}
    for number in numbers:
        with contextlib.suppress(OSError):
            copies[number] = os.dup(number)
    try:
        yield
    finally:
        for number in numbers:
            if number in copies:
                os.dup2(copies[number], number, inheritable=os.get_inheritable(number))
                os.close(copies[number])
            else:
                os.closerange(number, number + 1)
