"""A Jupyter kernel a session for sandbox.py, as jupyter_client starts and asks it."""

from __future__ import annotations

import ast
from typing import Any

from jupyter_client.manager import KernelManager
from ordered import NotAvailableError
from sandbox_box import Box

PATIENCE_S = 60


class KernelSession:
    """A kernel process, and a client of it."""

    def __init__(self) -> None:
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel()
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    def run(self, code: str) -> Any:
        asked = self._client.execute(code)
        value = None
        while True:
            kind, told = self._next(asked)
            if kind == "execute_result":
                value = ast.literal_eval(told["data"]["text/plain"])
            elif kind == "error":
                raise NotAvailableError(f"it has no such thing: {told['evalue']}")
            elif kind == "status" and told["execution_state"] == "idle":
                return value

    def _next(self, asked: str) -> tuple[str, dict[str, Any]]:
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") == asked:
                return message["msg_type"], message["content"]

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def open_jupyter() -> Box:
    return Box(KernelSession)
