"""Both generations of the protocol, and both major versions of the SDK."""

import asyncio
import json
import subprocess

import pytest
from mcp_servers import (  # noqa: F401
    PROGRAMS,
    configured,
    hostile,
    made_with_sdk,
    need_real_servers,
    newest_revision,
    nothing_is_left,
    opened,
)

from envweave.tools.mcp import McpServers

HANDSHAKES = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


async def protocols_and_value(servers, tool, **arguments):
    async with opened(servers) as tools:
        return servers.protocols, await tools[tool].function(**arguments)


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize("revision", HANDSHAKES)
def test_a_server_that_requires_a_handshake_works(revision):
    servers = McpServers(configured(it=hostile("echo", "--revision", revision)))

    protocols, value = asyncio.run(protocols_and_value(servers, "echo", text="hi"))

    assert (protocols, value) == ({"it": revision}, "hi")


def test_a_server_that_exits_on_anything_before_the_handshake_works():
    servers = McpServers(configured(it=hostile("echo", "--prim")))

    protocols, value = asyncio.run(protocols_and_value(servers, "echo", text="hi"))

    assert (protocols, value) == ({"it": "2025-11-25"}, "hi")


@pytest.mark.slow  # starts MCP servers
def test_the_newest_revision_is_used_with_a_server_of_the_same_sdk():
    servers = McpServers(configured(it=made_with_sdk()))

    protocols, total = asyncio.run(protocols_and_value(servers, "add", a=1))

    assert (protocols, total) == ({"it": newest_revision()}, 3)


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize(("ours", "theirs"), [("1", "2"), ("2", "1")])
def test_each_major_version_of_the_sdk_uses_servers_of_the_other(ours, theirs):
    folder = need_real_servers()
    done = subprocess.run(
        [
            *(folder / f"sdk{ours}/bin/python", "-W", "error", PROGRAMS / "mcp_client_check.py"),
            folder / f"sdk{theirs}/bin/python",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    gone = (
        "McpError: The MCP server 'mortal' is gone: it exited with code {}. "
        "The next episode starts it again."
    )
    assert json.loads(done.stdout) == {
        "sdk": ours,
        "protocols": {
            "made": "2025-11-25",
            "hostile": "2025-11-25",
            "mortal": "2025-11-25",
        },
        "tools": [
            *("add", "shout", "made_die"),
            *("echo", "data", "ask", "chatter", "flood", "fail", "mortal_die"),
        ],
        "add": 3,
        "bad arguments": "McpError: Error executing tool add: 1 validation error for addArguments",
        "echo": "hi more=None",
        "data": {"deep": {"list": [1, None, {"a": 1.5}], "none": None}},
        "ask": "refused",
        "chatter": "quiet again",
        "flood": "still here",
        "fail": "McpError: the disk is full",
        "die": gone.format(3),
        "again": gone.format(4),
    }
