"""A missing or unreachable cluster is reported with advice."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envweave import KubernetesProvider
from envweave.errors import OptionError, StartupError
from envweave.providers.kubernetes.cluster import Cluster

pytest.importorskip("kubernetes", reason="Install it with: pip install 'envweave[kubernetes]'")


def write_config(folder: Path, port: int) -> str:
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return str(path)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def start(**options: Any) -> None:
    KubernetesProvider(**options).start_container("echo-env:latest")


def test_an_unreachable_api_server_is_reported(tmp_path: Path, free_port: int) -> None:
    with pytest.raises(StartupError) as caught:
        start(kubeconfig=write_config(tmp_path, free_port))

    message = str(caught.value)
    assert f"The API server at http://127.0.0.1:{free_port} does not answer" in message
    assert "(connection refused)" in message
    assert "Set KUBECONFIG" in message


def test_a_missing_cluster_is_reported_with_how_to_configure_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(StartupError, match=r"No cluster is configured\. Set KUBECONFIG"):
        start()


def test_a_missing_or_empty_kubeconfig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="There is no kubeconfig file '/no/such/file'"):
        start(kubeconfig="/no/such/file")

    (tmp_path / "empty").write_text("{}")
    with pytest.raises(OptionError, match="empty' configures no cluster"):
        start(kubeconfig=str(tmp_path / "empty"))


@pytest.mark.parametrize("text", [b"a: [", b"hello", b"- 1", b"\xff\xfe\0"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "other").write_bytes(text)

    with pytest.raises(OptionError, match=r"other' is not a kubeconfig file: .*Set KUBE"):
        start(kubeconfig=str(tmp_path / "other"))
    with pytest.raises(OptionError, match=r"is not a kubeconfig file: .*directory"):
        start(kubeconfig=str(tmp_path))


def test_a_file_without_an_address_is_refused(tmp_path: Path) -> None:
    path = Path(write_config(tmp_path, 1))
    path.write_text(path.read_text().replace('"server"', '"sever"'))

    with pytest.raises(OptionError, match="has no address of the cluster's API server"):
        start(kubeconfig=str(path))


def test_a_context_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has no context 'y'\. It has: x"):
        start(kubeconfig=write_config(tmp_path, 1), context="y")


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every call in the same way."""

    status, body = 200, b""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = do_DELETE = do_PATCH = _answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Any]:
    """Return what has a server answer all calls so, and the kubeconfig that tells of it."""
    servers = []

    def answer(status: int, body: bytes) -> str:
        kind = type("Same", (Answers,), {"status": status, "body": body})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return write_config(tmp_path, server.server_address[1])

    yield answer
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_connecting_to_a_hung_api_server_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = Cluster(write_config(tmp_path, silent.getsockname()[1]))

        with pytest.raises(StartupError, match=r"does not answer \(timed out\)"):
            cluster.connect("pod", 8000)
        cluster.close()


FORBIDDEN = json.dumps({"message": "pods is forbidden: User cannot create"}).encode()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>hello</html>", "is not a Kubernetes API server"),
        (401, b"{}", "does not know this user"),
        (403, FORBIDDEN, r"pods is forbidden: User cannot create\. Ask for this permission"),
        (503, b"busy", "failed with status 503: busy"),
        (429, b"too many", "failed with status 429: too many"),
        (400, b"what?", "what?"),
    ],
)
def test_messages_of_the_api_server_are_passed_on(
    answering: Any, status: int, body: bytes, message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        start(kubeconfig=answering(status, body))
