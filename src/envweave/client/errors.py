"""Errors for servers that cannot be reached, refuse the caller, or are not envweave servers."""

from __future__ import annotations

import json
from typing import Any

from envweave.client.address import Address
from envweave.errors import (
    AccessError,
    ConnectionLostError,
    DeadlineError,
    EnvWeaveError,
    ServerError,
    WireError,
)
from envweave.wire.websocket import TOO_BIG, Refusal

_LONGEST_QUOTE = 300
_AWAY = (500, 502, 503, 504)


def unreachable(address: Address, error: Exception) -> ConnectionLostError:
    """Return the error for a server that does not answer."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ConnectionLostError(
        f"No server answers at {address.url} ({why}). Start one with: envweave serve ID"
    )


def silent(address: Address, method: str, timeout_s: float) -> DeadlineError:
    """Return the error for a server that accepted a connection, but does not reply."""
    return DeadlineError(
        f"The server at {address.url} did not answer {method}() within {timeout_s:g} s. It may "
        "be hung, or still be making its first environment. Check its log, then try again."
    )


def broken(address: Address, why: str) -> ConnectionLostError:
    """Return the error for a connection that broke."""
    return ConnectionLostError(f"The connection to {address.url} broke: {why}")


def closed(address: Address, code: int, reason: str) -> EnvWeaveError:
    """Return the error for a WebSocket that the server closed."""
    suffix = f" ({_shortened(reason)})" if reason else ""
    if code == TOO_BIG:
        # Not retried: which message it was, and whether the server handled it, is unknown.
        return WireError(
            f"The connection to {address.url} broke: a message is larger than the server, or "
            f"a proxy in front of it, accepts{suffix}"
        )
    return broken(address, f"the server closed it with code {code}{suffix}")


def refused(address: Address, refusal: Refusal) -> EnvWeaveError:
    """Return the error for a server that answered with HTTP instead of a WebSocket."""
    message = _message(refusal)
    suffix = f": {message}" if message else "."
    if refusal.status == 401:
        return AccessError(
            f"The server at {address.url} refused access{suffix} Pass token=…, or set "
            "$ENVWEAVE_TOKEN."
        )
    if refusal.status == 403 and message:
        return AccessError(f"The server at {address.url} refused access: {message}")
    if refusal.status in _AWAY:
        return ConnectionLostError(
            f"The server at {address.url} is not available: HTTP {refusal.status}{suffix}"
        )
    return not_envweave(address, f"It answered HTTP {refusal.status}{suffix}")


def not_envweave(address: Address, how: str) -> ServerError:
    """Return the error for a server that does not speak envweave's protocol."""
    scheme, _, rest = address.url.partition("://")
    ours = f"openenv://{rest}" if scheme == "http" else "openenv://…"
    return ServerError(
        f"The server at {address.url} is not an envweave server. {how} If it is an OpenEnv "
        f"server, use {ours!r}; otherwise check the URL."
    )


def _message(refusal: Refusal) -> str:
    """Return the message in the body of a refusal, on one line."""
    try:
        plain: Any = json.loads(refusal.body)
    except (ValueError, RecursionError):
        is_text = refusal.headers.get("content-type", "").startswith("text/plain")
        return _shortened(refusal.body.decode(errors="replace")) if is_text else ""
    for key in ("fault", "error", "detail", "message"):
        if isinstance(plain, dict) and key in plain:
            plain = plain[key]
    return _shortened(plain) if isinstance(plain, str) else ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"
