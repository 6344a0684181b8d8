"""Runs untrusted Python behind walls that the kernel enforces.

A `Sandbox` makes sessions in milliseconds; a session runs code in microseconds, keeps its
variables from run to run, and can be branched while it lives.

    with Sandbox() as sandbox, sandbox.session() as session:
        session.run("x = 20")
        assert session.run("x + 1").return_value == 21

Names are imported on first use: the template imports this package too, and must stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envweave.sandbox.async_session import AsyncSession as AsyncSession
    from envweave.sandbox.doctor import Tier as Tier
    from envweave.sandbox.doctor import TierReport as TierReport
    from envweave.sandbox.doctor import examine as examine
    from envweave.sandbox.execution import ExecutionResult as ExecutionResult
    from envweave.sandbox.execution import Limits as Limits
    from envweave.sandbox.execution import ToolCall as ToolCall
    from envweave.sandbox.sandbox import AsyncSandbox as AsyncSandbox
    from envweave.sandbox.sandbox import Sandbox as Sandbox
    from envweave.sandbox.session import Session as Session

_HOMES = {
    "AsyncSandbox": "sandbox",
    "AsyncSession": "async_session",
    "ExecutionResult": "execution",
    "Limits": "execution",
    "Sandbox": "sandbox",
    "Session": "session",
    "Tier": "doctor",
    "TierReport": "doctor",
    "ToolCall": "execution",
    "examine": "doctor",
}

__all__ = [
    "AsyncSandbox",
    "AsyncSession",
    "ExecutionResult",
    "Limits",
    "Sandbox",
    "Session",
    "Tier",
    "TierReport",
    "ToolCall",
    "examine",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
