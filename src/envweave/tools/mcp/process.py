"""One MCP server as a process of this machine: started, written to, read from, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import final

from envweave.errors import StartupError
from envweave.tools.mcp import supervisor
from envweave.tools.mcp.config import CommandServer

MESSAGE_BYTES = 64 << 20
"""The longest message that a server may send."""

END_S = 3 * supervisor.EXIT_S + 7.0
"""How long a server may take to end before its supervisor is killed."""

_LINES_KEPT, _LINE_CHARACTERS = 20, 400
_STDERR_S = 1.0
_EXIT_S = 1.0


@final
class McpServerProcess:
    """A server that runs here, under a supervisor that ends it when this process ends.

    It belongs to the event loop that it is started on.

    Attributes:
        silent: Set when the server will say nothing more.
    """

    def __init__(self, keeper: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._keeper = keeper
        self._line = line
        self._stdin = _Writer()
        self._stdout = asyncio.StreamReader(MESSAGE_BYTES)
        self._stderr = _LastLines()
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transports: list[asyncio.BaseTransport] = []
        self._fault = ""
        self.silent = asyncio.Event()

    @classmethod
    async def start(cls, server: CommandServer, env: Mapping[str, str]) -> McpServerProcess:
        """Start a server.

        Args:
            server: What to start.
            env: All of its environment variables.

        Raises:
            StartupError: There is no such program or folder.
        """
        command = _find(server, env)
        ours, theirs = socket.socketpair()
        try:
            keeper = subprocess.Popen(  # noqa: S603 - what the configuration says
                [
                    *(sys.executable, "-I", "-S", supervisor.__file__),
                    *(str(theirs.fileno()), str(os.getpid()), command, *server.args),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=server.cwd,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is handled by the caller, which closes it in order
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        process = cls(keeper, ours)
        try:
            await process._connect()
        except BaseException:
            await process.end()
            raise
        return process

    async def _connect(self) -> None:
        loop, keeper = asyncio.get_running_loop(), self._keeper
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        self._line.setblocking(False)  # noqa: FBT003 - the standard library's
        loop.add_reader(self._line, self._read_line)
        reading = asyncio.StreamReaderProtocol(self._stdout)
        for protocol, pipe in ((reading, keeper.stdout), (self._stderr, keeper.stderr)):
            transport, _ = await loop.connect_read_pipe(lambda one=protocol: one, pipe)  # type: ignore[misc]
            self._transports.append(transport)
        writing, _ = await loop.connect_write_pipe(lambda: self._stdin, keeper.stdin)
        self._transports.append(writing)

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until there is room for the next.

        Raises:
            ConnectionError: The server reads no more.
        """
        await self._stdin.write(message + b"\n")

    async def read(self) -> bytes:
        """Return the next line that the server has written; nothing at the end."""
        line = b""
        try:
            line = await self._stdout.readline()
        except ValueError:
            self._fault = f"it sent a message of more than {MESSAGE_BYTES >> 20} MB"
        if not line:
            self.silent.set()
        return line

    async def why_silent(self) -> str:
        """Describe why there is nothing more to read."""
        if not self._fault:
            await asyncio.wait({self._gone}, timeout=_EXIT_S)
            self._fault = self._gone.result() if self._gone.done() else "it closed its stdout"
        if self._gone.done():
            await self._stderr.wait(_STDERR_S)
        return self._fault

    def last_lines(self) -> str:
        """Return the last lines of the server's stderr."""
        return self._stderr.text()

    async def end(self) -> str:
        """End the server and all that it started; return how it exited. Harmless twice."""
        if self._keeper.returncode is None:
            self._stdin.close()
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
            await asyncio.wait({self._gone}, timeout=END_S)
            if not self._gone.done():
                self._read_line(is_over=True)
            await self._stderr.wait(_STDERR_S)
            for transport in self._transports:
                transport.close()
            for pipe in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
                if pipe is not None:
                    pipe.close()
            await asyncio.sleep(0)  # transports close their pipes in the loop's next iteration
        return self._gone.result()

    def _read_line(self, *, is_over: bool = False) -> None:
        """Read how the server exited, as its supervisor reports before it exits."""
        status = b""
        if not is_over:
            try:
                status = self._line.recv(64)
            except BlockingIOError:
                return
            except OSError:
                pass
        asyncio.get_running_loop().remove_reader(self._line)
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            self._keeper.kill()  # its report has been read; the server dies with it
        self._keeper.wait()
        self._gone.set_result(_ending(int(status) if status else -signal.SIGKILL))


def _find(server: CommandServer, env: Mapping[str, str]) -> str:
    """Return the path of a server's program.

    Raises:
        StartupError: There is none, or the folder is none.
    """
    if server.cwd is not None and not Path(server.cwd).is_dir():
        raise StartupError(f"MCP server {server.name!r}: cwd={server.cwd!r} is not a folder.")
    if os.sep in server.command:
        path = Path(server.cwd or ".", Path(server.command).expanduser())
        found = shutil.which(str(path.absolute()))
    else:
        found = shutil.which(server.command, path=env.get("PATH"))
    if found is None:
        raise StartupError(
            f"MCP server {server.name!r}: command {server.command!r} not found. Install it, or "
            "set 'command' to its path."
        )
    return found


def _ending(code: int) -> str:
    if code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


@final
class _Writer(asyncio.BaseProtocol):
    """Writes to a pipe, and waits while it is full."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._is_lost = True
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def write(self, data: bytes) -> None:
        if self._transport is None or self._is_lost or self._transport.is_closing():
            raise ConnectionResetError("The server closed its input.")
        self._transport.write(data)
        await self._room.wait()
        if self._is_lost:
            raise ConnectionResetError("The server closed its input.")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()  # nothing waits for the rest


@final
class _LastLines(asyncio.Protocol):
    """Reads what a process writes, and keeps the last of it."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        *lines, begun = (self._begun + data).split(b"\n")
        self._begun = begun[: 4 * _LINE_CHARACTERS]
        self._lines.extend(map(_shown, lines[-_LINES_KEPT:]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._ended.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until all is read, or the time is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    def text(self) -> str:
        begun = [_shown(self._begun)] if self._begun.strip() else []
        return "\n".join([*self._lines, *begun][-_LINES_KEPT:]).strip("\n")


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()[:_LINE_CHARACTERS]
