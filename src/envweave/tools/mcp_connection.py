"""The connection to one MCP server: opened, used, found broken, closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.tools import mcp_sdk
from envweave.tools.mcp_config import CommandServer, UrlServer
from envweave.tools.mcp_process import ServerProcess
from envweave.tools.mcp_results import Answer, McpError
from envweave.tools.mcp_sdk import ListedTool, Peer, PeerLostError

_BREAK_S = 10.0
"""How long it may take until it is known why a connection broke."""


@final
class Connection:
    """A connection, held by one task of its own: the library wants it left where it was entered.

    It belongs to the event loop it is used on, and is opened once.
    """

    def __init__(self, server: CommandServer | UrlServer, timeout_s: float) -> None:
        self.server = server
        self._timeout_s = timeout_s if server.timeout_s is None else server.timeout_s
        self._process: ServerProcess | None = None
        self._peer: Peer | None = None
        self._opened = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._broken = ""
        self._holder: asyncio.Task[None] | None = None

    @property
    def is_standing(self) -> bool:
        """Whether calls can be made, for all that is known."""
        return self._peer is not None and self._holder is not None and not self._holder.done()

    @property
    def protocol(self) -> str:
        """The revision of the protocol that is spoken."""
        return "" if self._peer is None else self._peer.protocol

    async def open(self) -> list[ListedTool]:
        """Start or reach the server, and return its tools.

        Raises:
            StartupError: It cannot be; the message says which server, and why.
        """
        self._holder = asyncio.create_task(self._hold())
        opened = asyncio.create_task(self._opened.wait())
        ends_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            await asyncio.wait(
                {self._holder, opened},
                timeout=self._timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._opened.is_set() and not self._holder.done():
                left_s = ends_s - asyncio.get_running_loop().time()
                return await self.list_tools(max(0.0, left_s))
            why = self._broken
            if not self._holder.done():
                why = f"it did not answer within {self._timeout_s:g} s"
        except McpError as error:
            why = str(error)
        except BaseException:
            await self.close()
            raise
        finally:
            opened.cancel()
        await self.close()
        raise StartupError(self._told("could not be started", why))
