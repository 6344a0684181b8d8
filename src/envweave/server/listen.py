"""The socket that a server listens on: TCP or unix."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import final

from envweave.errors import OptionError, StartupError
from envweave.server.security import is_loopback

BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""

_IDLE_S, _BETWEEN_S, _TIMES = 60, 15, 4
"""TCP keepalive: idle time before the first probe, interval, and number of probes."""


@final
class Listener:
    """A listening socket.

    Attributes:
        socket: The socket.
        url: Its URL: `http://127.0.0.1:8000` or `unix:///run/env.sock`.
    """

    def __init__(self, listening: socket.socket, url: str, path: Path | None = None) -> None:
        self.socket = listening
        self.url = url
        self._path = path
        self._identity = None if path is None else _identity(path)

    def close(self) -> None:
        """Stop listening; the file of a unix socket is removed, unless it was replaced."""
        self.socket.close()
        if self._path is not None and _identity(self._path) == self._identity:
            self._path.unlink(missing_ok=True)


def refuse_openness(host: str, token: str | None, *, insecure: bool) -> None:
    """Refuse to serve other machines without a token.

    Raises:
        OptionError: The host is not loopback, there is no token, and `insecure` is not set.
    """
    if token is not None or insecure or is_loopback(host):
        return
    raise OptionError(
        f"host={host!r} can be reached from other machines, and no token is set. Set "
        "ENVWEAVE_TOKEN (or --token) to a secret that clients send, or pass --insecure "
        "(insecure=True) to let anyone run episodes here."
    )


def listen(host: str, port: int) -> Listener:
    """Listen on a TCP port; 0 picks a free one.

    Raises:
        StartupError: The port is in use or not permitted.
        OptionError: There is no such host or port.
    """
    if not 0 <= port <= 65535:
        raise OptionError(f"port must be 1 to 65535, or 0 for a free one, got {port!r}.")
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise OptionError(
            f"host={host!r} is not a known name or address: {error.strerror}."
        ) from None
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _IDLE_S),
            ("TCP_KEEPINTVL", _BETWEEN_S),
            ("TCP_KEEPCNT", _TIMES),
        ):
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise StartupError(_why_not(error, f"{host}:{port}")) from None
    made.settimeout(0.0)
    shown = f"[{host}]" if ":" in host else host
    return Listener(made, f"http://{shown}:{made.getsockname()[1]}")


def _why_not(error: OSError, where: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is in use. Stop the program that listens there, or choose another port; "
            "port 0 picks a free one."
        )
    return f"Cannot listen on {where}: {error.strerror}."


def listen_unix(path: str | os.PathLike[str], mode: int = 0o600) -> Listener:
    """Listen on a unix socket, which by default only this user can use.

    A socket file that a dead server left behind is replaced.

    Raises:
        StartupError: The path is in use or not permitted.
    """
    where = Path(path).absolute()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(where)
        made.bind(str(where))
        where.chmod(mode)  # before it listens, so that no client can connect earlier
        made.listen(BACKLOG)
    except StartupError:
        made.close()
        raise
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise StartupError(f"Cannot listen on {str(where)!r}: {reason}.") from None
    made.settimeout(0.0)
    return Listener(made, f"unix://{where}", where)


def _remove_stale(where: Path) -> None:
    try:
        mode = where.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"{str(where)!r} is a file, not a socket. Choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(where))
        except ConnectionRefusedError:
            where.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise StartupError(f"{str(where)!r} is in use by another server. Choose another path.")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
