"""Whether a server answers `/health`, on a port or a unix socket."""

from __future__ import annotations

import http.client
import socket
from urllib.parse import urlsplit

_LONGEST_ANSWER = 1 << 16


def answers_health(base_url: str, timeout_s: float) -> bool:
    """Whether the server at `base_url` says now that it is well; it may take so long to."""
    try:
        connection = _connected(base_url, timeout_s)
    except OSError:
        return False
    try:
        connection.request("GET", "/health", headers={"Connection": "close"})
        response = connection.getresponse()
        response.read(_LONGEST_ANSWER)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return response.status == 200


def _connected(base_url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(base_url)
    if parts.scheme != "unix":
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=timeout_s
        )
        connection.connect()
        return connection
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(parts.path)
    except BaseException:
        sock.close()
        raise
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = sock
    return connection
