"""Environments for code, as worker processes and servers import them."""

from __future__ import annotations

from typing import Any

from envweave.codeact.creating import create_codeact_env


def coder(**options: Any) -> Any:
    """Return an environment that runs code, with two tools."""
    return create_codeact_env(tools=[add, later], **options)


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


async def later(value: str) -> str:
    """Return what it is given, some time."""
    return value
