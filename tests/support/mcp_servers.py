"""MCP servers for tests: hostile ones, ones made with the SDK, and real ones from npm and PyPI."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import descendants

from envweave.tools import Tool
from envweave.tools.mcp import McpServers

SUPPORT = Path(__file__).parent
PROGRAMS = SUPPORT / "programs"
ROOT = SUPPORT.parents[1]


def hostile(*arguments: str, **keys: Any) -> dict[str, Any]:
    """Return the configuration of `mcp_hostile_server.py`: its tools, and how it behaves."""
    program = str(PROGRAMS / "mcp_hostile_server.py")
    return {"command": sys.executable, "args": ["-I", "-S", program, *arguments], **keys}


def made_with_sdk(**keys: Any) -> dict[str, Any]:
    """Return the configuration of a server that the installed SDK makes."""
    return {"command": sys.executable, "args": [str(PROGRAMS / "mcp_sdk_server.py")], **keys}


def configured(**servers: dict[str, Any]) -> dict[str, Any]:
    return {"mcpServers": servers}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that no process, thread or file descriptor outlives a test. Import it to have it."""
    asyncio.run(asyncio.sleep(0))  # what asyncio itself keeps is there from now on
    before = descendants(), set(threading.enumerate()), _descriptors()
    yield
    gc.collect()
    assert {one for one in descendants() if not one.is_dead} <= before[0]
    assert set(threading.enumerate()) <= before[1]
    assert _descriptors() <= before[2]


def _descriptors() -> set[str]:
    return {
        f"{one.name} {one.readlink()}"
        for one in Path("/proc/self/fd").iterdir()
        if one.is_symlink()
    }


@asynccontextmanager
async def opened(servers: McpServers) -> AsyncIterator[dict[str, Tool]]:
    """Start servers, give their tools by name, and end them."""
    try:
        yield {tool.name: tool for tool in await servers.start()}
    finally:
        await servers.close()


def shorten_timeout(servers: McpServers, timeout_s: float) -> None:
    """Give running servers less time to answer than they had to start on a busy machine."""
    assert servers._connections is not None
    for connection in servers._connections._connections.values():
        connection._timeout_s = timeout_s


@contextmanager
def web_server(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server of the SDK's over HTTP; give its address and its process."""
    process = subprocess.Popen(
        [sys.executable, PROGRAMS / "mcp_sdk_server.py", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield f"http://127.0.0.1:{port}/{'sse' if '--sse' in options else 'mcp'}", process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def newest_revision() -> str:
    """Return the newest revision of the protocol that the installed SDK speaks."""
    major = importlib.metadata.version("mcp").partition(".")[0]
    return {"1": "2025-11-25", "2": "2026-07-28"}[major]


def need_real_servers() -> Path:
    """Return the folder of the real servers; skip the test where they are not, but not in CI.

    In CI they are installed: there their absence is a failure.
    """
    is_ci = os.environ.get("CI") == "true"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/mcp-servers", *([] if is_ci else ["--where"])],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and is_ci:
        pytest.fail(f"scripts/mcp-servers failed: {done.stderr.strip()}")
    if done.returncode:
        pytest.skip("The MCP servers are not installed. Run scripts/mcp-servers once.")
    return Path(done.stdout.strip())
