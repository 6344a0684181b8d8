"""Processes that are told what to do line by line: an order in, its answer out, both JSON.

Both ends import this module, so it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PATIENCE_S = 120.0


class NotAvailableError(Exception):
    """This one cannot take part here; the message says why."""


class Ordered:
    """A process that takes orders, as the one who gives them holds it."""

    def __init__(
        self, command: Sequence[str], surroundings: Mapping[str, str], *, what: str
    ) -> None:
        self._what = what
        self._process = subprocess.Popen(
            command,
            cwd=HERE,
            env=surroundings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, **order: Any) -> dict[str, Any]:
        """Give an order, and return the answer.

        Raises:
            NotAvailableError: It could not be carried out.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NotAvailableError(f"{self._what} ended") from None
        if not self._ready.select(PATIENCE_S):
            raise NotAvailableError(f"{self._what} did not come back within {PATIENCE_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise NotAvailableError(f"{self._what} ended")
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise NotAvailableError(answer["problem"])
        return answer

    def stop(self) -> None:
        """Have it close what is open, and end it, if need be by force."""
        with contextlib.suppress(NotAvailableError):
            self.ask(do="close")
        end(self._process)
        self._ready.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


def obey_orders(obey: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Carry out every order on the input, until it ends."""
    # Whatever a library prints is not an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = obey(json.loads(line))
        except NotAvailableError as error:
            answer = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001 - told to the one who gave the order
            answer = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def end(process: subprocess.Popen[bytes], *, whole_group: bool = False) -> None:
    """End a process, if need be by force."""

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number) if whole_group else process.send_signal(number)

    send(signal.SIGTERM)
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        send(signal.SIGKILL)
        process.wait()
    if whole_group:
        send(signal.SIGKILL)
