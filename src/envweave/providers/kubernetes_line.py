"""One connection to a port of a pod, through the API server: a WebSocket, once it is open."""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Mapping
from typing import Any

_FORWARD = "v4.channel.k8s.io"


def open_line(configuration: Any, url: str, authority: Mapping[str, str], timeout_s: float) -> Any:
    """Return a socket that carries the frames of a WebSocket.

    The official client does the same, but would wait for ever for an API server that hangs.

    Args:
        configuration: The official client's, which says whom to trust, and by which proxy to go.
        url: Where, beginning with `http`.
        authority: The headers that say who we are.
        timeout_s: How long each part of it may take: the connection, TLS, and the answer.

    Raises:
        websocket.WebSocketException: What answers there does not forward.
        OSError: Nobody answers, or not in time.
    """
    websocket = importlib.import_module("websocket")
    forwarding = importlib.import_module("kubernetes.stream.ws_client")
    headers = {**authority, "sec-websocket-protocol": _FORWARD}
    options: dict[str, Any] = {"header": [f"{key}: {value}" for key, value in headers.items()]}
    if configuration.proxy or configuration.proxy_headers:
        options = forwarding.websocket_proxycare(options, configuration, url, headers)
    line = websocket.WebSocket(sslopt=_tls(configuration), skip_utf8_validation=True)
    line.connect(forwarding.get_websocket_url(url), timeout=timeout_s, **options)
    return line.sock


def _tls(configuration: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        certifi = importlib.import_module("certifi")
        trusted = configuration.ssl_ca_cert or certifi.where()
        told = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": trusted}
        if configuration.assert_hostname is not None:
            told["check_hostname"] = configuration.assert_hostname
    named = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return told | {key: value for key, value in named.items() if value}
