"""smolagents' own interpreter of Python for sandbox.py, with and without its time-out."""

from __future__ import annotations

from typing import Any

from sandbox_box import Box
from sandbox_code import add
from smolagents.local_python_executor import LocalPythonExecutor


class SmolSession:
    """An executor and its state."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._executor = LocalPythonExecutor([], **settings)
        self._executor.send_tools({"add": add})

    def run(self, code: str) -> Any:
        return self._executor(code).output

    def close(self) -> None:
        self._executor.state.clear()


def open_smolagents() -> Box:
    return Box(lambda: SmolSession({}))


def open_without_timeout() -> Box:
    return Box(lambda: SmolSession({"timeout_seconds": None}))
