"""MCP servers that do not start, do not answer, or die: the error, and what continues."""

import asyncio
import logging
import os
import signal
import sys

import pytest
from mcp_servers import configured, hostile, made_with_sdk, nothing_is_left, opened, shorten_timeout  # noqa: F401

from envweave.errors import EnvWeaveError, StartupError
from envweave.tools.mcp import McpServers

pytestmark = pytest.mark.slow  # starts MCP servers


def start(config, **options):
    async def run():
        async with opened(McpServers(config, **options)):
            pass

    asyncio.run(run())


def test_a_server_that_exits_at_once_is_named_with_its_last_output():
    with pytest.raises(StartupError) as refused:
        start(configured(good=hostile("echo"), bad=hostile("--exit", "4")))

    message = str(refused.value)
    assert message.startswith(f"The MCP server 'bad' ({sys.executable} ")
    assert "mcp_hostile_server.py --exit 4) could not be started: it exited with code 4." in message
    assert message.endswith("Its last lines:\nthere is no licence")


def test_all_servers_that_cannot_be_started_are_named():
    with pytest.raises(StartupError, match=r"(?s)'one'.*code 4.*'two'.*'no-such-program'"):
        start(configured(one=hostile("--exit", "4"), two={"command": "no-such-program"}))


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "no-such-program"}, "command 'no-such-program' not found"),
        ({"command": __file__}, "command .*test_mcp_failures.* not found"),
        (
            {"command": sys.executable, "cwd": "/no/such/folder"},
            "'/no/such/folder' is not a folder",
        ),
    ],
)
def test_a_missing_program_is_named(server, words):
    with pytest.raises(StartupError, match=f"'it'.*{words}"):
        start(configured(it=server))


@pytest.mark.slow  # starts MCP servers
def test_a_program_that_the_system_cannot_run_is_named(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\0\1\2")
    program.chmod(0o755)

    with pytest.raises(StartupError, match=r"(?s)code 127.*Exec format error"):
        start(configured(it={"command": str(program)}))


def test_a_program_is_found_in_its_working_folder(tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport sys; sys.exit(9)")
    program.chmod(0o755)

    with pytest.raises(StartupError, match="exited with code 9"):
        start(configured(it={"command": "./program", "cwd": str(tmp_path)}))


def test_a_server_that_never_answers_times_out():
    with pytest.raises(StartupError, match=r"'it' .* did not answer within 0.5 s"):
        start(configured(it=hostile("--mute", timeout_s=0.5)))


def test_a_server_with_another_protocol_is_refused():
    with pytest.raises(StartupError, match=r"1999-01-01"):
        start(configured(it=hostile("--revision", "1999-01-01")))


@pytest.mark.slow  # starts MCP servers
def test_endless_pages_are_refused(monkeypatch):
    monkeypatch.setattr("envweave.tools.mcp.sdk._MOST_PAGES", 20)

    with pytest.raises(StartupError, match="on more than 20 pages"):
        start(configured(it=hostile("--endless-pages")))


def test_a_slow_server_is_waited_for(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def run():
        servers = McpServers(
            configured(slow=hostile("echo", "--wait-for", str(gate)), quick=hostile("pid"))
        )
        starting = asyncio.create_task(servers.start())
        await asyncio.to_thread(gate.write_text, "go")  # blocks until the server waits there
        try:
            return [tool.name for tool in await starting]
        finally:
            await servers.close()

    assert asyncio.run(run()) == ["echo", "pid"]


def test_a_cancelled_start_leaves_no_process(tmp_path):
    gate, note = tmp_path / "gate", tmp_path / "note"
    os.mkfifo(gate)

    async def run():
        slow = hostile("echo", "--wait-for", str(gate), "--note", str(note))
        servers = McpServers(configured(it=slow))
        starting = asyncio.create_task(servers.start())
        with await asyncio.to_thread(gate.open, "w"):  # the server waits there
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        await servers.close()

    asyncio.run(run())


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("die", {"code": 3}, "it exited with code 3"),
        ("die", {"code": 0}, "it exited with code 0"),
        ("kill", {}, "it was ended by SIGKILL"),
        ("close_stdout", {}, "it closed its stdout"),
    ],
)
def test_a_server_that_dies_during_a_call_is_restarted_in_the_next_episode(tool, arguments, why):
    async def run():
        servers = McpServers(configured(it=hostile(tool, "echo"), other=hostile("pid")))
        async with opened(servers) as tools:
            with pytest.raises(EnvWeaveError) as first:
                await tools[tool].function(**arguments)
            with pytest.raises(EnvWeaveError) as second:
                await tools["echo"].function(text="hi")
            other = await tools["pid"].function()
            again = {one.name: one for one in await servers.start()}
            assert await again["echo"].function(text="hi") == "hi"
            assert await again["pid"].function() == other
            return str(first.value), str(second.value)

    first, second = asyncio.run(run())

    message = f"The MCP server 'it' is gone: {why}. The next episode starts it again."
    assert first == second == message


def test_the_output_of_a_dead_server_is_logged_on_the_host_only(caplog):
    async def run():
        async with opened(McpServers(configured(it=hostile("die")))) as tools:
            with pytest.raises(EnvWeaveError) as failed:
                await tools["die"].function(code=3)
            return str(failed.value)

    with caplog.at_level(logging.WARNING, "envweave.tools"):
        message = asyncio.run(run())

    assert "dying with 3" not in message
    assert "'it' is gone: it exited with code 3. Its last lines:\ndying with 3" in caplog.text


def test_a_server_that_died_between_episodes_is_started_again():
    async def run():
        servers = McpServers(configured(it=hostile("pid")))
        async with opened(servers) as tools:
            before = int(await tools["pid"].function())
            os.kill(before, signal.SIGKILL)
            (tool,) = await servers.start()
            return before, int(await tool.function())

    before, after = asyncio.run(run())

    assert before != after


@pytest.mark.slow  # starts MCP servers
def test_a_server_that_hangs_is_replaced_for_the_next_episode(tmp_path):
    note = tmp_path / "starts"

    async def run():
        servers = McpServers(configured(it=hostile("echo", "--note", str(note))))
        async with opened(servers) as tools:
            shorten_timeout(servers, 0.5)
            pid = int(note.read_text())
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EnvWeaveError, match=r"'it' did not answer 'echo' within 0.5 s"):
                await tools["echo"].function(text="hi")
            again = {one.name: one for one in await servers.start()}
            return await again["echo"].function(text="hi")

    assert asyncio.run(run()) == "hi"
    assert note.read_text().count("\n") == 2


def test_a_call_that_takes_too_long_fails_and_the_server_continues():
    async def run():
        servers = McpServers(configured(it=hostile("hang", "echo")))
        async with opened(servers) as tools:
            shorten_timeout(servers, 0.5)
            with pytest.raises(EnvWeaveError, match=r"'it' did not answer 'hang' within 0.5 s"):
                await tools["hang"].function()
            shorten_timeout(servers, 30.0)
            return await tools["echo"].function(text="hi")

    assert asyncio.run(run()) == "hi"


def test_a_call_can_be_cancelled_and_the_server_continues():
    async def run():
        async with opened(McpServers(configured(it=hostile("hang", "echo")))) as tools:
            hanging = asyncio.create_task(tools["hang"].function())
            assert await tools["echo"].function(text="hi") == "hi"  # by now it waits, too
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            return await tools["echo"].function(text="hi")

    assert asyncio.run(run()) == "hi"


def test_a_large_result_arrives_whole():
    async def run():
        async with opened(McpServers(configured(it=hostile("huge")))) as tools:
            return await tools["huge"].function(size=8 << 20)

    assert asyncio.run(run()) == "x" * (8 << 20)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("huge", {"size": 2 << 20}), pytest.param("endless", {}, marks=pytest.mark.slow)],
)
def test_a_message_beyond_the_limit_ends_the_server(monkeypatch, tool, arguments):
    monkeypatch.setattr("envweave.tools.mcp.process.MESSAGE_BYTES", 1 << 20)

    async def run():
        async with opened(McpServers(configured(it=hostile(tool, "echo")))) as tools:
            with pytest.raises(EnvWeaveError, match="is gone: it sent a message of more than 1 MB"):
                await tools[tool].function(**arguments)

    asyncio.run(run())


@pytest.mark.slow  # starts MCP servers
def test_a_dead_server_of_the_sdk_is_reported_like_any_other():
    async def run():
        async with opened(McpServers(configured(it=made_with_sdk()))) as tools:
            with pytest.raises(EnvWeaveError, match="'it' is gone: it exited with code 5"):
                await tools["die"].function(code=5)

    asyncio.run(run())
