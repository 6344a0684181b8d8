"""MCP servers that run already, and are reached over HTTP on the loopback interface."""

import asyncio
import functools
import socket

import pytest
from mcp_servers import configured, hostile, nothing_is_left, opened, shorten_timeout, web_server  # noqa: F401

from envweave.errors import EnvWeaveError, StartupError
from envweave.tools.mcp import McpServers


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize("kind", ["http", "sse"])
def test_the_tools_of_a_server_are_used_over_http(kind):
    async def run(url):
        servers = McpServers(configured(web={"url": url, "type": kind}, here=hostile("echo")))
        async with opened(servers) as tools:
            again = [tool.name for tool in await servers.start()]
            return again, await tools["add"].function(a=1), await tools["shout"].function(text="hi")

    with web_server(f"--{kind}") as (url, _):
        names, total, greeting = asyncio.run(run(url))

    assert names == ["add", "shout", "die", "echo"]
    assert (total, greeting) == (3, "HI")


@pytest.mark.slow  # starts MCP servers
def test_headers_are_sent_with_every_call(monkeypatch):
    monkeypatch.setenv("KEY", "s3cret")

    async def run(url):
        key = {"Authorization": "Bearer ${KEY}"}
        async with opened(McpServers(configured(web={"url": url, "headers": key}))) as tools:
            return await tools["add"].function(a=1)

    with web_server("--http", "--key", "s3cret") as (url, _):
        assert asyncio.run(run(url)) == 3


@pytest.mark.slow  # starts MCP servers
def test_a_server_that_refuses_this_caller_is_named():
    async def run(url):
        async with opened(McpServers(configured(web={"url": url}))):
            pass

    with (
        web_server("--http", "--key", "s3cret") as (url, _),
        pytest.raises(StartupError, match=f"'web' .{url}. could not be started"),
    ):
        asyncio.run(run(url))


@pytest.mark.parametrize("kind", ["http", "sse"])
def test_an_unreachable_url_is_named(kind):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = configured(web={"url": f"http://127.0.0.1:{port}/mcp", "type": kind})

    async def run():
        async with opened(McpServers(config)):
            pass

    with pytest.raises(StartupError, match=rf"'web' \(http://127.0.0.1:{port}/mcp\).*Connect"):
        asyncio.run(run())


def test_a_silent_server_times_out():
    async def run(url):
        async with opened(McpServers(configured(web={"url": url}), timeout_s=0.5)):
            pass

    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(StartupError, match=r"'web' .* did not answer within 0.5 s"),
    ):
        asyncio.run(run(f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"))


@pytest.mark.slow  # starts MCP servers
def test_a_server_that_dies_during_a_call_fails_that_call_and_later_ones():
    """How soon the first is known to fail depends on the version of the SDK."""

    async def run(url):
        servers = McpServers(configured(web={"url": url}))
        async with opened(servers) as tools:
            shorten_timeout(servers, 3.0)
            with pytest.raises(EnvWeaveError):
                await tools["die"].function(code=3)
            with pytest.raises(EnvWeaveError, match=r"'web' is gone: .*next episode starts it"):
                await tools["add"].function(a=1)

    with web_server("--http") as (url, _):
        asyncio.run(run(url))


@pytest.mark.slow  # starts MCP servers
def test_a_restarted_server_is_used_in_the_next_episode():
    async def run(url, process, listen_again):
        servers = McpServers(configured(web={"url": url}), timeout_s=20)
        async with opened(servers) as tools:
            assert await tools["add"].function(a=1) == 3
            process.kill()
            process.wait()
            with listen_again() as (_, _):
                tools = {tool.name: tool for tool in await servers.start()}
                return await tools["add"].function(a=2)

    with web_server("--http") as (url, process):
        port = url.split(":")[2].partition("/")[0]
        again = functools.partial(web_server, "--http", "--port", port)
        assert asyncio.run(run(url, process, again)) == 4
