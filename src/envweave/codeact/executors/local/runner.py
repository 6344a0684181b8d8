"""The thread of a session: what the host asks for is done here, among the code's own objects."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, final

from msgspec.structs import replace

from envweave.codeact.executors.local.interpreting import Interpreter
from envweave.codeact.executors.local.interrupts import Interrupts, TimeLimit
from envweave.codeact.executors.local.line import HostGoneError, Line
from envweave.codeact.executors.local.streams import KeptText, keeping
from envweave.codeact.injected.variables_inside import show
from envweave.sandbox.inside.channel import TooLargeError
from envweave.sandbox.inside.reprs import show_briefly, show_value
from envweave.sandbox.limits import Limits
from envweave.sandbox.protocol.messages import Failure, Run, RunFinished
from envweave.sandbox.protocol.plain_values import pack

logger = logging.getLogger("envweave.codeact")

LOOKS = {True: "<look>", False: "<look, and ask nothing>"}
"""What is sent in place of code, and is none, to be told of the variables: whether or not values
are asked for their repr."""

_OWN_FOLDER = 0x200  # CLONE_FS


@dataclass
class _Told:
    """What a run came to, as far as it came."""

    value: Any = None
    is_plain: bool = True
    shown: str | None = None
    failure: Failure | None = None


@final
class Runner:
    """Runs code for a host, in the thread that calls `serve`.

    Args:
        interpreter: What makes values of code.
        own: Names that are bound for the code.
        line: The way to the host.
        interrupts: What interrupts the code.
        limits: What the code may use.

    Attributes:
        is_left_behind: Whether the host waits for it no longer.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        own: Collection[str],
        line: Line,
        interrupts: Interrupts,
        limits: Limits,
    ) -> None:
        self.is_left_behind = False
        self._interpreter = interpreter
        self._own = own
        self._line = line
        self._interrupts = interrupts
        self._stdout = KeptText(limits.output_bytes, "<stdout>")
        self._stderr = KeptText(limits.output_bytes, "<stderr>")

    def serve(self, folder: str) -> None:
        """Do what the host asks, in this folder, until it hangs up."""
        try:
            _move_to(folder)
            while True:
                message = self._line.receive()
                if isinstance(message, Run):
                    self._run(message)
        except HostGoneError:
            pass
        finally:
            self._line.close()
            self._interpreter.close()

    def _run(self, message: Run) -> None:
        told = _Told()
        with keeping(self._stdout, self._stderr, lambda: self.is_left_behind):
            try:
                interrupted = self._try(message.code, told)
            except TimeLimit:  # it came when all was said
                interrupted = self._interrupts.end()
        if interrupted and told.failure is None:
            told.failure = _SWALLOWED
        stdout, out_cut = self._stdout.take()
        stderr, err_cut = self._stderr.take()
        self._send(
            RunFinished(
                message.id,
                stdout,
                stderr,
                told.value,
                told.is_plain,
                told.shown,
                told.failure,
                out_cut or err_cut,
                interrupted,
            )
        )

    def _try(self, code: str, told: _Told) -> bool:
        """Run code, and say whether it was interrupted. An interrupt may come out of this."""
        try:
            self._interrupts.begin()
            try:
                value = self._value(code)
            except BaseException as error:  # noqa: BLE001 - the code's own, whatever it is
                sys.settrace(None)
                told.failure = self._interpreter.show_failure(error)
            else:
                sys.settrace(None)
                if value is not None:
                    told.shown = show_value(value)
                    told.value, told.is_plain = _as_plain(value)
        except BaseException as error:  # noqa: BLE001 - interrupted as it was shown
            told.value, told.is_plain = None, told.shown is None
            told.failure = told.failure or show_briefly(error)
        return self._interrupts.end()

    def _value(self, code: str) -> Any:
        if code in LOOKS.values():
            return show(self._interpreter.variables(), self._own, ask=code == LOOKS[True])
        return self._interpreter.run(code)

    def _send(self, finished: RunFinished) -> None:
        """Send it; without its value, or without what it printed, where that is too large."""
        dropped: dict[str, Any] = {"value": None, "plain": False}
        silent: dict[str, Any] = {**dropped, "stdout": "", "stderr": "", "cut": True}
        bare: dict[str, Any] = {**silent, "shown": None, "failure": _TOO_LARGE}
        for changed in ({}, dropped, silent, bare):
            try:
                self._line.send(replace(finished, **changed))
            except TooLargeError:
                continue
            return


_SWALLOWED = Failure(
    "TimeLimit", "The code ran for longer than it may, and went on when it was told.", ""
)
_TOO_LARGE = Failure("ValueError", "What came of the code is too large to be sent.", "")


def _as_plain(value: Any) -> tuple[Any, bool]:
    try:
        return pack(value), True
    except Exception:  # noqa: BLE001 - not plain, or a dict that a thread changes
        return None, False


def _move_to(folder: str) -> None:
    """Make a folder the current one of this thread, where threads can have their own."""
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):
        is_apart = False
    else:
        is_apart = unshare(_OWN_FOLDER) == 0
    if is_apart:
        os.chdir(folder)
    else:
        logger.debug("this system has one current folder for all threads; code stays in it")
