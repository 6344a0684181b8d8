"""One MCP server as a local process."""

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
"""How long a server may take to stop before its supervisor is killed."""

_LINES_KEPT, _LINE_CHARACTERS = 20, 400
_STDERR_S = 1.0
_EXIT_S = 1.0


@final
class McpServerProcess:
    """A local server, under a supervisor that stops it when this process ends.

    It belongs to the event loop that it is started on.

    Attributes:
        finished: Set when the server will send nothing more.
    """

    def __init__(self, supervisor_process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._supervisor = supervisor_process
        self._control = control
        self._stdin = _Writer()
        self._stdout = asyncio.StreamReader(MESSAGE_BYTES)
        self._stderr = _LastLines()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transports: list[asyncio.BaseTransport] = []
        self._fault = ""
        self.finished = asyncio.Event()

    @classmethod
    async def start(cls, server: CommandServer, env: Mapping[str, str]) -> McpServerProcess:
        """Start a server.

        Args:
            server: What to start.
            env: All of its environment variables.

        Raises:
            StartupError: There is no such program or folder.
        """
        command = _find_command(server, env)
        ours, theirs = socket.socketpair()
        try:
            supervisor_process = subprocess.Popen(  # noqa: S603 - the configured command
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
                start_new_session=True,  # the caller handles Ctrl-C, and stops the server in order
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        process = cls(supervisor_process, ours)
        try:
            await process._connect()
        except BaseException:
            await process.end()
            raise
        return process

    async def _connect(self) -> None:
        loop, supervisor_process = asyncio.get_running_loop(), self._supervisor
        assert supervisor_process.stdin is not None
        assert supervisor_process.stdout is not None
        assert supervisor_process.stderr is not None
        self._control.setblocking(False)  # noqa: FBT003 - the standard library's
        loop.add_reader(self._control, self._read_exit_code)
        stdout = asyncio.StreamReaderProtocol(self._stdout)
        for protocol, pipe in (
            (stdout, supervisor_process.stdout),
            (self._stderr, supervisor_process.stderr),
        ):
            transport, _ = await loop.connect_read_pipe(lambda one=protocol: one, pipe)  # type: ignore[misc]
            self._transports.append(transport)
        stdin, _ = await loop.connect_write_pipe(lambda: self._stdin, supervisor_process.stdin)
        self._transports.append(stdin)

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until the pipe has room for the next.

        Raises:
            ConnectionError: The server closed its stdin.
        """
        await self._stdin.write(message + b"\n")

    async def read(self) -> bytes:
        """Return the next line from the server's stdout; empty at the end."""
        line = b""
        try:
            line = await self._stdout.readline()
        except ValueError:
            self._fault = f"it sent a message of more than {MESSAGE_BYTES >> 20} MB"
        if not line:
            self.finished.set()
        return line

    async def why_finished(self) -> str:
        """Describe why there is nothing more to read."""
        if not self._fault:
            await asyncio.wait({self._ended}, timeout=_EXIT_S)
            self._fault = self._ended.result() if self._ended.done() else "it closed its stdout"
        if self._ended.done():
            await self._stderr.wait(_STDERR_S)
        return self._fault

    def last_lines(self) -> str:
        """Return the last lines of the server's stderr."""
        return self._stderr.text()

    async def end(self) -> str:
        """Stop the server and its child processes; return how it exited. Harmless twice."""
        if self._supervisor.returncode is None:
            self._stdin.close()
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            await asyncio.wait({self._ended}, timeout=END_S)
            if not self._ended.done():
                self._read_exit_code(is_over=True)
            await self._stderr.wait(_STDERR_S)
            for transport in self._transports:
                transport.close()
            for pipe in (self._supervisor.stdin, self._supervisor.stdout, self._supervisor.stderr):
                if pipe is not None:
                    pipe.close()
            await asyncio.sleep(0)  # transports close their pipes in the loop's next iteration
        return self._ended.result()

    def _read_exit_code(self, *, is_over: bool = False) -> None:
        """Read the exit code of the server, which the supervisor sends before it exits itself."""
        status = b""
        if not is_over:
            try:
                status = self._control.recv(64)
            except BlockingIOError:
                return
            except OSError:
                pass
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self._supervisor.kill()  # it has sent the exit code; the server dies with it
        self._supervisor.wait()
        self._ended.set_result(_describe_exit(int(status) if status else -signal.SIGKILL))


def _find_command(server: CommandServer, env: Mapping[str, str]) -> str:
    """Return the path of a server's program.

    Raises:
        StartupError: The program or the folder does not exist.
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


def _describe_exit(code: int) -> str:
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
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._is_lost = True
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, data: bytes) -> None:
        if self._transport is None or self._is_lost or self._transport.is_closing():
            raise ConnectionResetError("The server closed its input.")
        self._transport.write(data)
        await self._writable.wait()
        if self._is_lost:
            raise ConnectionResetError("The server closed its input.")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()  # unsent data is dropped


@final
class _LastLines(asyncio.Protocol):
    """Reads a pipe to its end, and keeps the last lines."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._partial = b""

    def data_received(self, data: bytes) -> None:
        *lines, partial = (self._partial + data).split(b"\n")
        self._partial = partial[: 4 * _LINE_CHARACTERS]
        self._lines.extend(map(_decode, lines[-_LINES_KEPT:]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._ended.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until all is read, or the timeout passes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    def text(self) -> str:
        partial = [_decode(self._partial)] if self._partial.strip() else []
        return "\n".join([*self._lines, *partial][-_LINES_KEPT:]).strip("\n")


def _decode(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()[:_LINE_CHARACTERS]
