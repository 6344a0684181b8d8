"""`envweave serve`: options, output and errors."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from typing import Any

import httpx2
import pytest


def test_an_unknown_id_is_refused_in_one_line(envweave) -> None:
    ran = envweave("serve", "conter-v0")

    assert (ran.code, ran.stdout) == (2, "")
    assert "Did you mean 'counter-v0'?" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_in_use_is_refused_in_one_line(envweave) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = envweave("serve", "counter-v0", "--port", str(port))

    assert ran.code == 2
    assert ran.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} is in use" in ran.stderr


def test_beyond_loopback_it_does_not_start_without_a_token(
    envweave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVWEAVE_TOKEN", raising=False)

    ran = envweave("serve", "counter-v0", "--host", "0.0.0.0", "--port", "0")

    assert ran.code == 2
    assert "ENVWEAVE_TOKEN" in ran.stderr
    assert "--insecure" in ran.stderr


def test_a_keyword_that_the_environment_does_not_take_is_refused(envweave) -> None:
    ran = envweave("serve", "counter-v0", "--port", "0", "--arg", "don_at=3")

    assert ran.code == 2
    assert "Did you mean 'done_at'?" in ran.stderr


def test_without_its_extra_it_prints_how_to_install_it(
    envweave, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )

    ran = envweave("serve", "counter-v0", "--port", "0")

    assert ran.code == 2
    assert "pip install 'envweave[server]'" in ran.stderr


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ("{", "JSON object"),
        ("[]", "JSON object"),
        ("{}", "'id' is missing"),
        ('{"id": "counter-v0", "prot": 1}', "'prot'"),
        ('{"id": "counter-v0", "options": {"max_session": 1}}', "'max_session'"),
        ('{"id": "conter-v0"}', "counter-v0"),
    ],
)
def test_a_child_with_an_invalid_configuration_reports_it(config: str, part: str) -> None:
    from envweave.cli.server_main import main

    messages: list[str] = []

    code = main([config], messages.append)

    assert code == 2
    assert part in "".join(messages)
    assert "".join(messages).count("\n") == 1


@pytest.mark.slow  # starts the command line anew
def test_with_json_the_url_and_the_log_are_json_lines(tmp_path: Any) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "envweave.cli", "serve", "counter-v0"),
            *("--port", "0", "--json", "--drain-s", "0", "--arg", "done_at=1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    httpx2.post(f"{ready['url']}/reset")
    reply = httpx2.post(f"{ready['url']}/step", json={"action": {"delta": 1}})
    httpx2.post(f"{ready['url']}/step", json={"action": {"delta": 1}})
    process.terminate()
    rest, log = process.communicate(timeout=20)

    assert ready["id"] == "counter-v0"
    assert reply.json()["done"] is True
    assert (rest, process.returncode) == ("", 0)
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["message"] for line in lines] == [
        "session opened",
        "call refused",
        "stopping with 0 running episodes",
        "session closed",
    ]
    assert lines[0].keys() == {"time", "level", "logger", "message"}
    assert (lines[1]["method"], lines[1]["code"]) == ("step", "reset_needed")
    assert lines[-1]["reason"] in ("drained", "stopped")


def test_every_option_of_a_server_reaches_it_and_has_its_default(
    envweave, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envweave.server.options import ServerOptions

    given: list[dict[str, Any]] = []
    monkeypatch.delenv("ENVWEAVE_TOKEN", raising=False)
    monkeypatch.setattr(
        "envweave.cli.server_main.serve_config", lambda config: given.append(config["options"])
    )
    monkeypatch.setattr("envweave.server.run.leave", lambda _: 0)

    envweave("serve", "counter-v0")
    envweave(
        *("serve", "counter-v0", "--queue-size", "3", "--queue-timeout-s", "1.5"),
        *("--max-stuck", "2", "--head-timeout-s", "2.5"),
    )

    plain, changed = given
    lists = {name: tuple(plain[name]) for name in ("allowed_hosts", "allowed_origins")}
    assert ServerOptions(**{**plain, **lists}) == ServerOptions()
    assert [changed[name] for name in ("queue_size", "queue_timeout_s", "max_stuck")] == [3, 1.5, 2]
    assert changed["head_timeout_s"] == 2.5
