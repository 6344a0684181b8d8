"""Whether a server answers `/health`, and what its last log lines say."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from envweave.errors import EnvWeaveError
from envweave.wire.faults import INTERNAL, error_of
from envweave.wire.messages import WireFault

_MAX_RESPONSE = 1 << 16


def answers_health(base_url: str, timeout_s: float) -> bool:
    """Whether the server at `base_url` reports within `timeout_s` that it is healthy."""
    try:
        connection = _connect(base_url, timeout_s)
    except OSError:
        return False
    try:
        connection.request("GET", "/health", headers={"Connection": "close"})
        response = connection.getresponse()
        response.read(_MAX_RESPONSE)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return response.status == 200


def _connect(base_url: str, timeout_s: float) -> http.client.HTTPConnection:
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
"""The prefix of the log line by which a server reports why it cannot start."""

LINES_READ, LINES_SHOWN = 60, 20


def error_in(lines: Sequence[str], image: str) -> EnvWeaveError | None:
    """Return the error that a server reported in its log; `None` if it reported none."""
    line = next((line for line in reversed(lines) if line.startswith(FAULT)), None)
    if line is None:
        return None
    try:
        fault = WireFault(**json.loads(line.removeprefix(FAULT)))
        if fault.code == INTERNAL.code:
            return None
        error = error_of(fault)
    except (ValueError, TypeError):
        return None
    error.add_note(f"Raised in a container of {image!r}.")
    return error


def log_tail(lines: Sequence[str]) -> str:
    """Return the end of an error message: the last log lines."""
    last = lines[-LINES_SHOWN:]
    return " Its last lines:\n" + "\n".join(last) if last else " It printed nothing."
