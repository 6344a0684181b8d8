"""No process is left, however servers or their trainer end."""

import asyncio
import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from mcp_servers import SUPPORT, configured, hostile, nothing_is_left, opened  # noqa: F401
from processes import descendants, is_alive, keeping_orphans

from envweave.errors import EnvWeaveError
from envweave.tools.mcp import McpServers

BOUND_S = 60.0


def wait_until_gone(*pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            watched = os.pidfd_open(pid)
            try:
                assert select.select([watched], [], [], BOUND_S)[0], f"{pid} lives on"
            finally:
                os.close(watched)


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize("options", [[], ["--stubborn"]])
def test_closing_ends_the_server_and_what_it_started(tmp_path, options):
    pids = tmp_path / "pids"

    async def run():
        server = hostile("echo", *options, "--child", str(pids))
        async with opened(McpServers(configured(it=server))):
            return [int(pid) for pid in pids.read_text().split()]

    started = asyncio.run(run())

    assert len(started) == 2
    assert not any(map(is_alive, started))


def test_child_processes_of_a_dead_server_are_ended(tmp_path):
    pids = tmp_path / "pids"

    async def run():
        async with opened(McpServers(configured(it=hostile("die", "--child", str(pids))))) as tools:
            started = [int(pid) for pid in pids.read_text().split()]
            with pytest.raises(EnvWeaveError, match="code 3"):
                await tools["die"].function(code=3)
            return [is_alive(pid) for pid in started]

    assert asyncio.run(run()) == [False, False]


def test_unclosed_servers_end_when_they_are_garbage_collected(tmp_path):
    pids = tmp_path / "pids"

    async def run():
        servers = McpServers(configured(it=hostile("echo", "--child", str(pids))))
        await servers.start()

    asyncio.run(run())
    gc.collect()

    wait_until_gone(*[int(pid) for pid in pids.read_text().split()])
    for thread in threading.enumerate():
        if thread.name == "envweave-mcp":
            thread.join(BOUND_S)


TRAINER = """
    import asyncio, os, sys, time
    sys.path.insert(0, {support!r})
    from mcp_servers import configured, hostile
    from envweave.tools.mcp import McpServers

    async def main():
        it = hostile("hang", "echo", *{options!r}, "--child", {pids!r})
        servers = McpServers(configured(it=it))
        tools = {{tool.name: tool for tool in await servers.start()}}
        hanging = asyncio.create_task(tools["hang"].function())
        await tools["echo"].function(text="by now it hangs")
        {first}
        print("ready", flush=True)
        {then}

    asyncio.run(main())
"""


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize(
    ("first", "then", "blow", "options"),
    [
        ("", "await hanging", signal.SIGKILL, []),
        ("", "await hanging", signal.SIGKILL, ["--stubborn"]),
        ("", "await hanging", signal.SIGINT, []),
        ("", "return", None, ["--stubborn"]),
        ("os.fork() or time.sleep(600)", "await hanging", signal.SIGKILL, []),
    ],
    ids=["killed", "killed, stubborn", "interrupted", "it just ends", "killed, a fork is left"],
)
def test_servers_end_when_the_trainer_ends_in_any_way(tmp_path, first, then, blow, options):
    pids = tmp_path / "pids"
    program = TRAINER.format(
        support=str(SUPPORT), options=options, pids=str(pids), first=first, then=then
    )
    with trainer_runs(textwrap.dedent(program)) as trainer:
        assert trainer.stdout.readline() == b"ready\n", trainer.stderr.read()
        if blow is not None:
            trainer.send_signal(blow)

        wait_until_gone(*[int(pid) for pid in pids.read_text().split()])


@contextlib.contextmanager
def trainer_runs(program):
    """Run a program; at the end, end whatever is left of it."""
    before = {one.pid for one in descendants()}
    with keeping_orphans():
        trainer = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield trainer
        finally:
            trainer.kill()
            trainer.wait()
            trainer.stdout.close()
            trainer.stderr.close()
            while left := [one for one in descendants() if one.pid not in before]:
                for one in left:
                    one.kill()
                    wait_until_gone(one.pid)
                    one.reap()
