"""OpenEnv as it was released. Run in its virtual environment, by `tests/interop`.

Reads what to do from stdin, a line of JSON each, and writes the results to stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import json
import os
import signal
import socket
import sys
from typing import Any

from openenv.core import EnvClient, GenericEnvClient, MCPToolClient
from openenv.core.client_types import StepResult
from openenv.core.env_server import Action, Observation, State


def summary(result: Any) -> dict[str, Any]:
    return {
        "observation": result.observation,
        "reward": result.reward,
        "done": result.done,
        "metadata": result.metadata,
    }


def failure(error: BaseException) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}"}


async def play_async(url: str, calls: list[list[Any]], **options: Any) -> list[Any]:
    results: list[Any] = []
    async with GenericEnvClient(base_url=url, **options) as env:
        for method, argument in calls:
            try:
                if method == "reset":
                    results.append(summary(await env.reset(**argument)))
                elif method == "step":
                    results.append(summary(await env.step(argument)))
                elif method == "send":
                    await env._ws.send(argument)
                    results.append(json.loads(await env._ws.recv()))
                else:
                    results.append(await env.state())
            except Exception as error:  # noqa: BLE001 - reported to the test
                results.append(failure(error))
    return results


def play_sync(url: str, calls: list[list[Any]], **options: Any) -> list[Any]:
    results: list[Any] = []
    with GenericEnvClient(base_url=url, **options).sync() as env:
        for method, argument in calls:
            try:
                if method == "reset":
                    results.append(summary(env.reset(**argument)))
                elif method == "step":
                    results.append(summary(env.step(argument)))
                else:
                    results.append(env.state())
            except Exception as error:  # noqa: BLE001 - reported to the test
                results.append(failure(error))
    return results


class TypedAction(Action):
    code: str


class TypedObservation(Observation):
    """What OpenEnv's own coding environment shows. As in all of its classes, nothing else fits."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class TypedState(State):
    last_exit_code: int = 0


class TypedClient(EnvClient[TypedAction, TypedObservation, TypedState]):
    """A client of the kind that OpenEnv's environments come with: its coding client, in short."""

    def _step_payload(self, action: TypedAction) -> dict[str, Any]:
        return {"code": action.code}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        observation = TypedObservation(**payload["observation"])
        return StepResult(observation, payload.get("reward"), bool(payload.get("done")))

    def _parse_state(self, payload: dict[str, Any]) -> TypedState:
        return TypedState(**payload)


def play_typed(url: str, codes: list[str]) -> list[Any]:
    """Play on a coding environment with a typed client; return what it parsed."""
    with TypedClient(base_url=url).sync() as env:
        results = [env.reset().observation.model_dump()]
        results += [env.step(TypedAction(code=one)).observation.model_dump() for one in codes]
        return [*results, env.state().model_dump()]


async def crowd(url: str, count: int, actions: list[Any]) -> list[Any]:
    """Let many clients play at once, each at its own pace, and return what each saw last."""
    together = asyncio.Barrier(count)

    async def one(i: int) -> Any:
        async with GenericEnvClient(base_url=url) as env:
            first = await env.reset(seed=i)
            await together.wait()  # now all of them have a session
            seen = [first.metadata["seed"]]
            mine = actions[: 1 + i % len(actions)]
            return seen + [(await env.step(action)).observation for action in mine]

    return list(await asyncio.gather(*(one(i) for i in range(count))))


async def one_too_many(url: str, room: int) -> list[Any]:
    """Fill a server, ask for one session more, free one, and ask again."""
    clients = [GenericEnvClient(base_url=url) for _ in range(room)]
    late = GenericEnvClient(base_url=url)
    results: list[Any] = []
    try:
        for client in clients:
            await client.reset()
        try:
            results.append(summary(await late.reset()))
        except Exception as error:  # noqa: BLE001 - reported to the test
            results.append(failure(error))
        await clients[0].close()
        for _ in range(100):  # the server hears of it when it does
            try:
                results.append(summary(await late.reset()))
                break
            except Exception:  # noqa: BLE001 - not yet
                await asyncio.sleep(0.05)
    finally:
        for client in (*clients, late):
            await client.close()
    return results


async def use_tools(url: str) -> dict[str, Any]:
    async with MCPToolClient(base_url=url) as env:
        first = await env.reset()
        tools = await env.list_tools()
        try:
            called: Any = await env.call_tool("hammer", nail=1)
        except Exception as error:  # noqa: BLE001 - reported to the test
            called = failure(error)
        after = await env._production_mcp_request(
            "tools/list", {"session_id": env._production_session_id}
        )
        session = env._production_session_id
    gone = MCPToolClient(base_url=url)
    listed = await gone._production_mcp_request("tools/list", {"session_id": session})
    await gone.close()
    return {
        "first": first.observation.model_dump(),
        "tools": tools,
        "called": called,
        "after": after,
        "gone": listed,
    }


async def speak_mcp(url: str) -> dict[str, Any]:
    """Connect with the stock MCP client."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with (
        streamablehttp_client(f"{url}/mcp") as (reading, writing, _),
        ClientSession(reading, writing) as session,
    ):
        greeting = await session.initialize()
        await session.send_ping()
        tools = await session.list_tools()
        calls: list[tuple[str, dict[str, Any]]] = [
            ("hammer", {}),
            ("reset", {}),
            ("step", {"delta": "one"}),
            ("step", {"delta": 1}),
            ("step", {"delta": 9}),
        ]
        results = [await session.call_tool(name, arguments) for name, arguments in calls]
        return {
            "name": greeting.serverInfo.name,
            "version": greeting.protocolVersion,
            "tools": [tool.name for tool in tools.tools],
            "results": [[one.isError, one.structuredContent] for one in results],
        }


async def connect_and_vanish(url: str, action: dict[str, Any]) -> str:
    """Begin a step, and be gone without a word before it is over."""
    env = GenericEnvClient(base_url=url)
    await env.reset()
    await env._ws.send(json.dumps({"type": "step", "data": action}))
    env._ws.transport.abort()
    return "vanished"


def run_command(arguments: list[str]) -> dict[str, Any]:
    """Run the command `openenv`, as its entry point does."""
    from openenv.cli.__main__ import main as command

    printed = io.StringIO()
    before, sys.argv = sys.argv, ["openenv", *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(printed):
            command()
    except SystemExit as leaving:
        code = leaving.code or 0
    finally:
        sys.argv = before
    return {"code": code, "printed": printed.getvalue()}


def serve_environments() -> dict[str, int]:
    """Serve `openenv_server.py` in a copy of this process, which has imported everything."""

    import openenv_server

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with us
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            openenv_server.run(listener, lambda: os.write(writing, b"!"))
        finally:
            os._exit(1)
    os.close(writing)
    port = listener.getsockname()[1]
    listener.close()
    with os.fdopen(reading, "rb") as ready:
        assert ready.read(1), "the OpenEnv server did not start"
    return {"port": port, "pid": pid}


DOES = {
    "play_async": play_async,
    "play_sync": play_sync,
    "play_typed": play_typed,
    "crowd": crowd,
    "one_too_many": one_too_many,
    "use_tools": use_tools,
    "speak_mcp": speak_mcp,
    "connect_and_vanish": connect_and_vanish,
    "run_command": run_command,
    "serve_environments": serve_environments,
}


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # what OpenEnv prints is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            outcome = DOES[asked["do"]](**asked["with"])
            if asyncio.iscoroutine(outcome):
                outcome = asyncio.run(outcome)
            answer = {"result": outcome}
        except BaseException as error:  # noqa: BLE001 - reported to the test
            answer = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
