"""The least that a remote step can cost here: a bare server and a bare client, beside envweave.

    benchmarks/run remote --floor

The bare server runs on uvloop. It decodes one MessagePack frame, builds the action, calls the same
environment, encodes its observation and writes, all in the callback that read the frame. There are
no sessions, no call ids, no checks, no WebSocket frames and no HTTP. What envweave takes beyond
this is what its promises cost.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.measurement.processes import ROOT, child_variables
from benchmarks.measurement.tables import Table, show
from benchmarks.remote.processes import ENVWEAVE, ClientAndServer

SECONDS, ROUNDS, ENVS = 1.0, 5, 64
HEADER = struct.Struct("<I")

clock = time.perf_counter
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


def serve() -> None:
    """Serve `Count` until the process is ended; print the port."""
    import uvloop

    from benchmarks.remote.envweave_env import Count, CountAction

    class Bare(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self._transport, self._buffer = transport, b""
            self._envs = [Count() for _ in range(ENVS)]

        def data_received(self, data: bytes) -> None:
            self._buffer += data
            while len(self._buffer) >= HEADER.size:
                (length,) = HEADER.unpack_from(self._buffer)
                end = HEADER.size + length
                if len(self._buffer) < end:
                    return
                deltas = _decode(self._buffer[HEADER.size : end])
                self._buffer = self._buffer[end:]
                seen = [
                    env.step(CountAction(delta=delta))
                    for env, delta in zip(self._envs, deltas, strict=False)
                ]
                reply = _encode([(one.count, one.text, one.reward, one.done) for one in seen])
                self._transport.write(HEADER.pack(len(reply)) + reply)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(main())


class BareClient:
    """One connection, with blocking calls that spin for the reply, as envweave's client does."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's

    def step(self, deltas: list[int]) -> list[Any]:
        """Step environments, as many as there are numbers."""
        frame = _encode(deltas)
        self._socket.sendall(HEADER.pack(len(frame)) + frame)
        data = b""
        while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack_from(data)[0]:
            try:
                data += self._socket.recv(1 << 20)
            except BlockingIOError:
                continue
        rows: list[Any] = _decode(data[HEADER.size :])
        return rows


def bare_rate(port: int, envs: int) -> float:
    """Return the steps per second of one connection."""
    client, deltas = BareClient(port), [1] * envs
    taken, began = 0, clock()
    while clock() - began < SECONDS:
        client.step(deltas)
        taken += envs
    return taken / (clock() - began)


async def _sessions(port: int) -> float:
    async def play(until_s: float) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frame, taken = _encode([1]), 0
        while clock() < until_s:
            writer.write(HEADER.pack(len(frame)) + frame)
            _decode(await reader.readexactly(HEADER.unpack(await reader.readexactly(4))[0]))
            taken += 1
        writer.close()
        return taken

    began = clock()
    return sum(await asyncio.gather(*(play(began + SECONDS) for _ in range(ENVS)))) / (
        clock() - began
    )


def bare_sessions_rate(port: int) -> float:
    """Return the steps per second of many connections on one event loop."""
    import uvloop

    return uvloop.run(_sessions(port))


def main() -> int:
    """Print how many steps per second the bare programs and envweave take."""
    command = [sys.executable, "-m", "benchmarks.remote.floor"]
    variables = child_variables(sys.executable)
    server = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    pair = ClientAndServer(ENVWEAVE)
    cases: list[tuple[str, str, int, Callable[[], float]]] = [
        ("one session", "blocking", 1, lambda: bare_rate(port, 1)),
        (f"{ENVS} sessions", "async", ENVS, lambda: bare_sessions_rate(port)),
        (f"vector of {ENVS}", "vector", ENVS, lambda: bare_rate(port, ENVS)),
    ]
    rows = []
    try:
        for name, client, sessions, bare in cases:
            pair.open(client, sessions)
            pair.run(SECONDS / 4)
            rounds = [(bare(), pair.run(SECONDS)) for _ in range(ROUNDS)]
            pair.close()
            floor, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
            rows.append((name, f"{floor:,.0f}", f"{ours:,.0f}", f"{ours / floor:.0%}"))
    finally:
        pair.stop()
        server.terminate()
        server.wait()
    note = f"Steps per second; medians of {ROUNDS} interleaved rounds of {SECONDS:g} s."
    show(Table("The floor", ("case", ">bare program", ">envweave", ">share"), rows, [note]))
    return 0


if __name__ == "__main__":
    serve()
