"""The addresses a server listens on, and the options it refuses."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from processes import Leftovers

import envweave as ew
from envweave.api import serving
from envweave.api.options import recipe
from envweave.errors import OptionError, StartupError
from envweave.server.app import AppState
from envweave.server.listen import Listener, listen, listen_unix, refuse_openness
from envweave.server.run import Serving, write_line


@contextmanager
def serving_on(listener: Listener, env: Any = "counter-v0", **keywords: Any) -> Iterator[str]:
    """Serve in a thread, as `envweave serve` does in its process."""
    options, kwargs = serving.split({"drain_s": 0, **keywords})
    spec = recipe(env, None, None, None, kwargs)
    ready = threading.Event()
    site = AppState(lambda: serving.make_runtime(spec, kwargs, options), options)
    server = Serving(site, listener, lambda _: ready.set())
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(server.run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield listener.url
    finally:
        server.stop()
        thread.join(20)
    assert codes == [0]


def test_port_0_takes_one_that_is_free() -> None:
    with serving_on(listen("127.0.0.1", 0)) as url:
        reply = httpx2.get(f"{url}/health")

    assert reply.json() == {"status": "healthy"}
    assert "server" not in reply.headers
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health")


def test_a_port_that_is_in_use_is_refused() -> None:
    taken = listen("127.0.0.1", 0)
    port = int(taken.url.rpartition(":")[2])

    with pytest.raises(StartupError, match=f"127.0.0.1:{port} is in use"):
        listen("127.0.0.1", port)

    taken.close()


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(OptionError, match="not a known name or address"):
        listen("no such host", 0)


def test_ipv6_is_supported() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")

    with serving_on(listen("::1", 0)) as url:
        reply = httpx2.get(f"{url}/health")

    assert url.startswith("http://[::1]:")
    assert reply.status_code == 200


def test_a_unix_socket_is_private_to_its_user_and_removed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "env.sock"
    with serving_on(listen_unix(path)) as url:
        mode = stat.S_IMODE(path.stat().st_mode)
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://any.name") as client:
            reply = client.post("/reset")

    assert url == f"unix://{path}"
    assert mode == 0o600
    assert reply.status_code == 200
    assert not path.exists()


def test_a_unix_socket_that_a_dead_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "env.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    listener = listen_unix(path)

    listener.close()
    assert not path.exists()


def test_a_unix_socket_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "env.sock"
    first = listen_unix(path)

    with pytest.raises(StartupError, match="in use by another server"):
        listen_unix(path)

    assert path.exists()
    first.close()


def test_a_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")

    with pytest.raises(StartupError, match="not a socket"):
        listen_unix(path)

    assert path.read_text() == "precious"


def test_a_socket_of_another_server_is_not_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "env.sock"
    first = listen_unix(path)
    path.unlink()
    second = listen_unix(path)

    first.close()

    assert path.exists()
    second.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.4", "example.org"])
def test_beyond_loopback_a_token_is_needed_or_the_word_of_the_operator(host: str) -> None:
    with pytest.raises(OptionError, match=r"ENVWEAVE_TOKEN.*--insecure"):
        refuse_openness(host, None, insecure=False)

    refuse_openness(host, "secret", insecure=False)
    refuse_openness(host, None, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    refuse_openness(host, None, insecure=False)


def test_an_environment_that_cannot_be_made_is_reported_and_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    def fails() -> Any:
        raise RuntimeError("no GPU")

    path = tmp_path / "env.sock"
    left = Leftovers()

    with pytest.raises(ew.errors.DefinitionError, match="no GPU"):
        ew.serve(fails, uds=path)

    assert not path.exists()
    assert left.threads() == []


@pytest.mark.slow  # starts server processes
def test_serve_prints_its_url_and_stops_gracefully(tmp_path: Path) -> None:
    code = (
        "import envweave as ew, os, signal, threading\n"
        "ew.serve('counter-v0', port=0, drain_s=0)\n"
        "print('over', threading.active_count())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    rest, _ = process.communicate(timeout=20)

    assert line.startswith("envweave: serving counter-v0 on http://127.0.0.1:")
    assert line.rstrip().endswith("/docs)")
    assert (rest, process.returncode) == ("over 1\n", 0)


@pytest.mark.parametrize(
    ("keywords", "part"),
    [
        ({"max_sessions": 0}, "max_sessions must be an integer >= 1, got 0"),
        ({"workers": True}, "workers must be an integer >= 0, got True"),
        ({"session_ttl_s": "long"}, "session_ttl_s must be .* got 'long'"),
        ({"session_ttl_s": None}, "session_ttl_s must be .* got None"),
        ({"token": ""}, "token"),
        ({"allowed_hosts": "a"}, "allowed_hosts must be a list of strings"),
        ({"port": 70000}, "port must be 1 to 65535"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(keywords: dict[str, Any], part: str) -> None:
    with pytest.raises(OptionError, match=part):
        ew.serve("counter-v0", **keywords)


def test_readiness_is_written_to_a_file_descriptor() -> None:
    reading, writing = os.pipe()

    write_line(writing, json.dumps({"url": "http://x"}).encode())

    with os.fdopen(reading) as pipe:
        assert pipe.read() == '{"url": "http://x"}\n'
