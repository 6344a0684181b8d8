"""`envweave doctor`."""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import envweave as ew

HIDE = """
import importlib.metadata, sys
from importlib.metadata import PackageNotFoundError
real = importlib.metadata.version
def version(name):
    if name == "gymnasium":
        raise PackageNotFoundError(name)
    return "0.0.1" if name == "matplotlib" else real(name)
importlib.metadata.version = version
from envweave.cli import main
sys.exit(main())
"""


def test_the_report_shows_the_machine_and_every_part(envweave):
    ran = envweave("doctor")

    for parsed in (
        f"envweave {ew.__version__}",
        platform.python_version(),
        "core: numpy",
        "extra: cli",
        "backend: inproc ready",
        "scheme: pkg ready",
    ):
        assert parsed in ran.text


def test_the_json_report_has_the_same_parts(envweave):
    ran = envweave("doctor", "--json")

    parsed = json.loads(ran.stdout)
    assert set(parsed) == {
        *("ok", "python", "executable", "platform", "cpus", "envweave", "core", "extras"),
        *("backends", "schemes", "environments", "ray", "sandbox"),
    }
    assert [one["name"] for one in parsed["core"]] == [
        "cloudpickle",
        "msgspec",
        "numpy",
        "packaging",
    ]
    assert {"cli", "gym", "pettingzoo", "train"} <= {one["name"] for one in parsed["extras"]}
    ready = [one["name"] for one in parsed["backends"] if one["status"] == "ready"]
    assert {"inproc", "process", "http"} <= set(ready)
    assert parsed["cpus"] >= 1
    assert ran.code == (0 if parsed["ok"] else 1)


def test_builtin_environments_are_not_broken(envweave):
    parsed = json.loads(envweave("doctor", "--json").stdout)

    plugins = parsed["backends"] + parsed["schemes"] + parsed["environments"]
    assert [one for one in plugins if one["status"] == "broken"] == []
    assert parsed["ok"] is True


@pytest.mark.slow  # starts the command line anew
def test_a_missing_extra_is_reported_with_its_install_command(process):
    ran = process("doctor", "--json", code=HIDE)

    parsed = json.loads(ran.stdout)
    extras = {one["name"]: one for one in parsed["extras"]}
    schemes = {one["name"]: one for one in parsed["schemes"]}
    assert extras["gym"]["installed"] is False
    assert extras["gym"]["install"] == "pip install 'envweave[gym]'"
    assert schemes["gym"]["status"] == "missing"
    assert schemes["gym"]["detail"] == "pip install 'envweave[gym]'"
    assert "too old; 3.8" in extras["train"]["needs"][0]["problem"]
    assert extras["cli"]["installed"] is True


@pytest.mark.slow  # starts the command line anew
def test_the_text_gives_the_exact_install_command(process):
    ran = process("doctor", code=HIDE)

    assert "gymnasium not installed pip install 'envweave[gym]'" in ran.text


@pytest.mark.slow  # starts the command line anew
def test_a_broken_plugin_makes_the_doctor_fail(process, here):
    info = here / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[envweave.backends]\nfar = far_module\n")

    ran = process("doctor", PYTHONPATH=str(here))

    assert ran.code == 1
    assert "✗ backend: far The plug-in 'far' (envweave.backends) of thirdparty" in ran.text
    assert "Something is broken" in ran.text


class Service(BaseHTTPRequestHandler):
    """A Docker engine and a cluster's API server, as far as the doctor asks."""

    def do_GET(self) -> None:
        is_engine = self.path == "/version"
        body = {"ApiVersion": "1.44"} if is_engine else {"message": "pods not found"}
        self.send_response(200 if is_engine else 404)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def kubeconfig(here: Path, address: str) -> str:
    path = here / "kubeconfig"
    path.write_text(
        f"""{{apiVersion: v1, kind: Config, current-context: a,
        contexts: [{{name: a, context: {{cluster: a, user: a}}}}],
        clusters: [{{name: a, cluster: {{server: "http://{address}"}}}}],
        users: [{{name: a, user: {{}}}}]}}"""
    )
    return str(path)


def statuses(report: dict[str, list[dict[str, str]]], kind: str) -> dict[str, str]:
    return {one["name"]: one["status"] for one in report[kind]}


def test_without_an_engine_or_a_cluster_the_backends_are_unavailable(envweave, here, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("KUBECONFIG", str(here / "none"))

    ran = envweave("doctor")
    report = json.loads(envweave("doctor", "--json").stdout)

    assert ran.code == 0
    assert "– backend: docker_http The Docker engine at unix:///nowhere/docker.sock" in ran.text
    assert "`docker info`" in ran.text
    assert "Ready, except for the backends docker_http, kubernetes" in ran.text
    assert statuses(report, "schemes")["docker"] == "unavailable"
    assert statuses(report, "backends")["kubernetes"] == "unavailable"
    assert report["ok"] is True


def test_an_engine_and_a_cluster_that_answer_are_ready(envweave, here, monkeypatch):
    with service() as address:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{address}")
        monkeypatch.setenv("KUBECONFIG", kubeconfig(here, address))

        report = json.loads(envweave("doctor", "--json").stdout)

    assert statuses(report, "schemes")["docker"] == "ready"
    backends = statuses(report, "backends")
    assert {name for name in backends if backends[name] != "ready"} <= {"ray"}


@pytest.mark.slow  # waits for the limit
def test_an_engine_that_hangs_is_unavailable_after_a_few_seconds(envweave, here, monkeypatch):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("docker.sock")
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{here / 'docker.sock'}")

        report = json.loads(envweave("doctor", "--json").stdout)

    (docker,) = [one for one in report["backends"] if one["name"] == "docker_http"]
    assert docker["status"] == "unavailable"
    assert docker["detail"] == "It did not answer within 5 s."
