"""A server in a container: reached, isolated, reported when it fails, and always removed."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from containers import BASE, ECHO, docker, exists, inspect

import envweave as ew
from envweave import LocalDockerProvider
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import AccessError, CallOrderError, OptionError, StartupError

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]
usefixtures = pytest.mark.usefixtures

READY_S = 60.0


@contextmanager
def started(image: str = ECHO, **options: Any) -> Iterator[tuple[LocalDockerProvider, str]]:
    """A container that is ready while the block runs."""
    provider = LocalDockerProvider(**options)
    try:
        base_url = provider.start_container(image)
        provider.wait_for_ready(base_url, READY_S)
        yield provider, base_url
    finally:
        provider.stop_container()


def run_inside(container: str, code: str) -> str:
    return docker("exec", container, "python", "-c", code)


@usefixtures("images")
def test_it_starts_and_stops_a_server_and_leaves_nothing_behind() -> None:
    threads = threading.enumerate()

    with started() as (provider, base_url):
        name = provider.container
        with EchoEnv(base_url, token=provider.token) as env:
            env.reset()
            reward = env.step(EchoAction("Hello, World!")).reward

    assert reward == 1.3
    assert not exists(name)
    assert (provider.container, provider.token) == (None, None)
    assert threading.enumerate() == threads


@usefixtures("images")
def test_its_port_is_on_loopback_and_requires_the_token() -> None:
    with started() as (provider, base_url):
        bound = inspect(provider.container)["NetworkSettings"]["Ports"]["8000/tcp"]

        with pytest.raises(AccessError):
            ew.make(base_url, token="wrong")

        assert [one["HostIp"] for one in bound] == ["127.0.0.1"]
        assert base_url == f"http://127.0.0.1:{bound[0]['HostPort']}"


@usefixtures("images")
def test_without_a_network_it_has_a_socket_that_only_this_user_reaches() -> None:
    connect = "import socket; socket.create_connection(('1.1.1.1', 53), 5)"
    with started(network="none") as (provider, base_url):
        folder = Path(base_url.removeprefix("unix://")).parents[1]
        mode = folder.stat().st_mode & 0o777
        with ew.make(base_url, token=provider.token) as env:
            env.reset()
            echoed = env.step({"message": "hi"}).observation.echoed_message
        interfaces = run_inside(
            provider.container, "import os; print(os.listdir('/sys/class/net'))"
        )
        with pytest.raises(AssertionError, match="Network is unreachable"):
            run_inside(provider.container, connect)
        with pytest.raises(AssertionError, match="Permission denied"):
            run_inside(provider.container, "open('/run/envweave/large', 'w')")

    assert (mode, echoed, interfaces) == (0o700, "hi", "['lo']")
    assert not folder.exists()


@usefixtures("images")
def test_it_is_isolated_as_far_as_possible() -> None:
    look = """
import json, os
about = dict(line.split(":", 1) for line in open("/proc/self/status"))
def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return os.strerror(error.errno)
files = ("/x", "/opt/envweave/x", "/etc/passwd", "/tmp/x")
print(json.dumps({
    "user": os.getuid(),
    "capabilities": [about[k].strip() for k in ("CapEff", "CapPrm", "CapBnd")],
    "may gain rights": about["NoNewPrivs"].strip() == "0",
    "files": {one: refused(one) for one in files},
    "token": os.environ.get("ENVWEAVE_TOKEN") is None,
}))
"""
    with started(memory="300m", pids=200, cpus=0.5, tmp_size="8m") as (provider, _):
        seen = json.loads(run_inside(provider.container, look))
        host = inspect(provider.container)["HostConfig"]

    none = "0" * 16
    assert seen == {
        "user": 10001,
        "capabilities": [none, none, none],
        "may gain rights": False,
        "files": {
            "/x": "Read-only file system",
            "/opt/envweave/x": "Read-only file system",
            "/etc/passwd": "Read-only file system",
            "/tmp/x": None,
        },
        "token": False,  # `docker exec` shows it to all users of the engine
    }
    limits = {name: host[name] for name in ("Memory", "MemorySwap", "PidsLimit", "CpuQuota")}
    assert limits == {
        "Memory": 300 * 2**20,
        "MemorySwap": 300 * 2**20,
        "PidsLimit": 200,
        "CpuQuota": 50_000,
    }
    assert "size=8388608" in host["Tmpfs"]["/tmp"]


@usefixtures("images")
def test_a_folder_is_mounted_read_only_by_default(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    tmp_path.chmod(0o755)
    with started(volumes={str(tmp_path): "/data"}) as (provider, _):
        assert run_inside(provider.container, "print(open('/data/a').read())") == "content"
        with pytest.raises(AssertionError, match="Read-only"):
            run_inside(provider.container, "open('/data/b', 'w')")


@usefixtures("images")
def test_options_of_the_caller_are_passed_on() -> None:
    provider = LocalDockerProvider()
    try:
        base_url = provider.start_container(
            ECHO, env_vars={"ENVWEAVE_TOKEN": "mine", "GREETING": "hello"}, memory="256m"
        )
        about = inspect(provider.container)

        assert provider.token == "mine"
        assert "GREETING=hello" in about["Config"]["Env"]
        assert about["HostConfig"]["Memory"] == 256 * 2**20
        with pytest.raises(CallOrderError, match="started a container already"):
            provider.start_container(ECHO)
        provider.wait_for_ready(base_url, READY_S)
    finally:
        provider.stop_container()
        provider.stop_container()

    with pytest.raises(CallOrderError, match="No container was started"):
        provider.wait_for_ready(base_url)


# What goes wrong


def test_a_missing_engine_is_reported_with_how_to_start_one(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    provider = LocalDockerProvider(docker_host=f"unix://{tmp_path}/docker.sock")

    with pytest.raises(StartupError, match=r"does not answer \(no such file.*systemctl start"):
        provider.start_container(ECHO)


def test_the_engine_of_another_machine_is_refused() -> None:
    pytest.importorskip("docker")

    with pytest.raises(OptionError, match="another machine's"):
        LocalDockerProvider(docker_host="tcp://10.1.2.3:2375").start_container(ECHO)


@usefixtures("images")
def test_a_missing_image_is_reported_with_the_ways_to_get_it() -> None:
    with pytest.raises(StartupError, match=r"no image 'no-such:1'.*docker build.*docker pull"):
        LocalDockerProvider().start_container("no-such:1")


@usefixtures("images")
def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(StartupError, match=f"Port {port} of this machine is in use"):
            LocalDockerProvider().start_container(ECHO, port=port)


def failing(code: str, **options: Any) -> str:
    """Return the error message for a container that runs a Python program."""
    provider = LocalDockerProvider(command=["python", "-c", code], **options)
    try:
        with pytest.raises(StartupError) as caught:
            provider.wait_for_ready(provider.start_container(BASE), READY_S)
    finally:
        provider.stop_container()
    return str(caught.value)


@usefixtures("images")
def test_a_server_that_exits_shows_its_last_lines() -> None:
    message = failing("for i in range(40): print('line', i)\nraise SystemExit(7)")

    lines = "\n".join(f"line {i}" for i in range(20, 40))
    assert message.endswith(
        f"of 'envweave-base:latest' exited with code 7. Its last lines:\n{lines}"
    )


@usefixtures("images")
def test_a_server_that_runs_out_of_memory_is_reported() -> None:
    message = failing(
        "print('so much', flush=True); x = bytearray(2**30); x[:] = b'1' * 2**30", memory="64m"
    )

    assert "ran out of memory: it needed more than 64 MiB" in message
    assert "memory=…" in message
    assert message.endswith("so much")


@usefixtures("images")
def test_a_server_that_starts_too_slowly_is_reported_with_its_log() -> None:
    provider = LocalDockerProvider(
        command=["python", "-c", "print('soon', flush=True); import time; time.sleep(60)"]
    )
    base_url = provider.start_container(BASE)
    try:
        with pytest.raises(
            StartupError, match=r"did not answer within 2 s\. Its last lines:\nsoon"
        ):
            provider.wait_for_ready(base_url, 2.0)
    finally:
        provider.stop_container()


@usefixtures("images")
def test_a_missing_program_is_reported() -> None:
    provider = LocalDockerProvider(command=["no-such-program"])
    try:
        with pytest.raises(StartupError, match=r"exited with code 127(.|\n)*no-such-program"):
            provider.wait_for_ready(provider.start_container(BASE), READY_S)
    finally:
        provider.stop_container()

    with pytest.raises(StartupError, match=r"could not be started: .*no-such-program"):
        LocalDockerProvider(command=["no-such-program"], init=False).start_container(BASE)


@usefixtures("images")
def test_an_environment_that_cannot_be_made_raises_as_in_this_process() -> None:
    provider = LocalDockerProvider()
    config = {"id": "counter-v0", "kwargs": {"done_att": 2}}
    try:
        base_url = provider.start_container(BASE, env_vars={"ENVWEAVE_CONFIG": json.dumps(config)})

        with pytest.raises(OptionError, match="'done_att' is neither an option") as caught:
            provider.wait_for_ready(base_url, READY_S)
    finally:
        provider.stop_container()

    assert caught.value.__notes__ == ["Raised in a container of 'envweave-base:latest'."]


@usefixtures("images")
def test_an_image_that_runs_as_root_causes_a_warning_unless_allowed() -> None:
    sleeps = {"command": ["python3", "-c", "import time; time.sleep(60)"]}
    provider = LocalDockerProvider(**sleeps)
    try:
        with pytest.warns(UserWarning, match="runs as root"):
            provider.start_container("envweave-python:3.11")
    finally:
        provider.stop_container()

    for user in ("root", "1000:1000"):
        meant = LocalDockerProvider(user=user, **sleeps)
        try:
            meant.start_container("envweave-python:3.11")
        finally:
            meant.stop_container()


@usefixtures("images")
@pytest.mark.parametrize(
    ("options", "config", "refusal"),
    [
        ({"network": "none"}, {}, "listens on a unix socket"),
        ({}, {"kwargs": {"done_at": 0}}, "done_at=0 cannot be passed"),
        ({}, {"max_episode_steps": 5}, "max_episode_steps=5 cannot be passed"),
    ],
)
def test_options_that_another_kind_of_image_does_not_support_are_refused(
    options: dict[str, Any], config: dict[str, Any], refusal: str
) -> None:
    provider = LocalDockerProvider(user="root", **options)

    with pytest.raises(OptionError, match=refusal):
        provider.start_container(
            "envweave-python:3.11", env_vars={"ENVWEAVE_CONFIG": json.dumps(config)}
        )


@usefixtures("images")
def test_a_missing_image_is_reported_with_a_similar_one() -> None:
    with pytest.raises(StartupError) as caught:
        LocalDockerProvider().start_container("echo-envv:latest")

    assert "no image 'echo-envv:latest'" in str(caught.value)
    assert "Did you mean 'echo-env'?" in str(caught.value)
    assert "`envweave build ID -t echo-envv:latest`" in str(caught.value)


def test_a_missing_image_of_an_id_is_reported_with_its_build_command() -> None:
    with pytest.raises(StartupError, match="`envweave build tictactoe-v0`"):
        LocalDockerProvider().start_container("tictactoe-env:latest")
