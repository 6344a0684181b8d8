"""Whether a server answers `/health`, on a port or a unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from envweave.errors import EnvWeaveError
from envweave.wire.faults import INTERNAL, error_of
from envweave.wire.messages import WireFault

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


FAULT = "envweave-fault: "
"""What the line begins with by which a server says why it cannot start."""

LINES_READ, LINES_SHOWN = 60, 20


def error_in(lines: Sequence[str], image: str) -> EnvWeaveError | None:
    """Return the error that a server told, as it would be raised here; `None` if it told none."""
    said = next((line for line in reversed(lines) if line.startswith(FAULT)), None)
    if said is None:
        return None
    try:
        told = WireFault(**json.loads(said.removeprefix(FAULT)))
        if told.code == INTERNAL.code:
            return None
        raised = error_of(told)
    except (ValueError, TypeError):
        return None
    raised.add_note(f"Raised in a container of {image!r}.")
    return raised


def told(lines: Sequence[str]) -> str:
    """Return the end of an error's message: what was printed last."""
    last = lines[-LINES_SHOWN:]
    return " Its last lines:\n" + "\n".join(last) if last else " It printed nothing."
