"""What makes values of code, in the thread that it runs in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from envweave.sandbox.protocol.messages import Failure


class Interpreter(ABC):
    """Runs the code of one episode, one piece after the other, always in the same thread."""

    @abstractmethod
    def bind(self, names: Mapping[str, Any]) -> None:
        """Have code find these names. Called before anything runs, in another thread."""

    @abstractmethod
    def run(self, code: str) -> Any:
        """Run code and return the value of its last expression, or `None`. Raises what it does."""

    @abstractmethod
    def variables(self) -> Mapping[str, Any]:
        """Return what is bound, by the code and for it."""

    @abstractmethod
    def show_failure(self, error: BaseException) -> Failure:
        """Return what `run` raised as text, with the lines of the code."""

    @abstractmethod
    def close(self) -> None:
        """Forget everything. Called once, after the last `run`."""
