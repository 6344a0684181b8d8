"""Servers behind TLS are reached by blocking, async and plain HTTP clients, if they are trusted."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments.served import Tally, TallyAction, TallyObservation
from servers import app_served

import envweave as ew
from envweave.errors import ConnectionLostError


class TallyClient(ew.HTTPEnvClient[TallyAction, TallyObservation]):
    pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return folder


@pytest.fixture
def url(certificate: Path) -> Iterator[str]:
    files = {
        "ssl_keyfile": str(certificate / "key.pem"),
        "ssl_certfile": str(certificate / "cert.pem"),
    }
    with app_served(ew.create_fastapi_app(Tally), **files) as plain:
        yield plain.replace("http://127.0.0.1", "https://localhost")


def test_every_client_speaks_tls(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))

    async def play() -> Any:
        async with ew.make_async(url) as env:
            await env.reset()
            return (await env.step({"do": "step"})).observation.at

    with ew.make(url) as env, ew.make_vector(url, num_envs=3) as venv, TallyClient(url) as client:
        env.reset()
        venv.reset()
        client.reset()

        assert env.step({"do": "step"}).observation.at == 1
        assert venv.step([{"do": "step"}] * 3).current["at"].tolist() == [1, 1, 1]
        assert client.step(TallyAction("step")).observation.at == 1
        assert asyncio.run(play()) == 1


def test_a_server_with_an_untrusted_certificate_is_refused(url: str) -> None:
    with pytest.raises(ConnectionLostError, match=r"(?i)certificate"):
        ew.make(url)

    with TallyClient(url) as client, pytest.raises(ConnectionLostError, match=r"(?i)certificate"):
        client.reset()
