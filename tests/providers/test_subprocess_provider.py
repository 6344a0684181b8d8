"""A server process for a caller: ready, reported when it fails, stopped, and never left behind."""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments.served import Tally
from processes import Leftovers
from servers import RecordingProvider

import envweave as ew
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import CallOrderError, DefinitionError, OptionError, StartupError
from envweave.examples import CounterEnv

GONE_S = 20.0


def folder_of(base_url: str) -> Path:
    return Path(base_url.removeprefix("unix://")).parent


@pytest.mark.slow  # starts server processes
def test_it_starts_and_stops_a_server_and_leaves_nothing_behind() -> None:
    left = Leftovers()
    provider = ew.SubprocessProvider()
    with EchoEnv.from_docker_image("echo-v0", provider=provider) as env:
        folder, pid = folder_of(env.base_url), provider.pid
        env.reset()
        reward = env.step(EchoAction("Hello, World!")).reward
        mode = folder.stat().st_mode & 0o777

    assert reward == 1.3
    assert mode == 0o700
    assert not folder.exists()
    assert provider.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert left.threads("envweave server") == []


@pytest.mark.slow  # starts server processes
def test_a_spec_is_sent_as_its_import_path_and_keywords() -> None:
    registry = ew.Registry()
    spec = registry.register("local://few-v0", CounterEnv, kwargs={"done_at": 2})
    provider = ew.SubprocessProvider()
    try:
        base_url = provider.start(spec, {})

        with ew.HTTPEnvClient(base_url) as env:
            env.reset()
            ends = [env.step({"delta": 1}).done for _ in range(2)]
    finally:
        provider.stop_container()
        provider.stop_container()

    assert ends == [False, True]


@pytest.mark.slow  # starts server processes
def test_an_environment_that_cannot_be_made_raises_as_in_this_process() -> None:
    provider = ew.SubprocessProvider()

    with pytest.raises(OptionError, match="'done_att' is neither an option"):
        provider.start(ew.spec("counter-v0"), {"done_att": 2})

    assert provider.pid is None


@pytest.mark.slow  # starts server processes
def test_a_server_that_exits_shows_its_last_lines(capfd: pytest.CaptureFixture[str]) -> None:
    provider = ew.SubprocessProvider()
    base_url = provider.start_container("pkg://environments.crashing:Exits")
    folder = folder_of(base_url)
    try:
        with pytest.raises(StartupError) as caught:
            provider.wait_for_ready(base_url, GONE_S)
    finally:
        provider.stop_container()

    assert "exited with code 7. Its last lines:\nno good today" in str(caught.value)
    assert not folder.exists()
    assert "no good today" in capfd.readouterr().err


@pytest.mark.slow  # waits for a deadline
def test_a_server_that_starts_too_slowly_is_reported_and_stopped() -> None:
    provider = ew.SubprocessProvider()
    base_url = provider.start_container("pkg://environments.crashing:Sleeps")
    pid = provider.pid
    try:
        with pytest.raises(StartupError, match=r"did not answer within 0\.2 s"):
            provider.wait_for_ready(base_url, 0.2)
    finally:
        os.killpg(pid, signal.SIGKILL)  # it sleeps through the first signal
        provider.stop_container()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_folder_for_the_socket_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))

    with pytest.raises(StartupError, match="TMPDIR"):
        ew.make("counter-v0", backend="http")


def test_an_id_registered_in_this_process_only_is_refused() -> None:
    with pytest.raises(DefinitionError, match="registered in this process only"):
        ew.SubprocessProvider().start_container("local://mine-v0")


def test_one_provider_has_one_server() -> None:
    provider = ew.SubprocessProvider()
    provider.start_container("echo-v0")
    try:
        with pytest.raises(CallOrderError, match="started a server already"):
            provider.start_container("echo-v0")
    finally:
        provider.stop_container()

    with pytest.raises(CallOrderError, match="No server was started"):
        provider.wait_for_ready("unix:///nowhere")


STARTER = """
import sys, time
import envweave as ew
provider = ew.SubprocessProvider()
base_url = provider.start(ew.spec("counter-v0"), {})
print(provider.pid, base_url, flush=True)
time.sleep(60)
"""


@pytest.mark.slow  # starts server processes
def test_a_server_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE) as starter:
        words = starter.stdout.readline().decode().split()
        pid, socket_path = int(words[0]), Path(words[1].removeprefix("unix://"))
        watch = os.pidfd_open(pid)
        try:
            starter.kill()

            ended, _, _ = select.select([watch], [], [], GONE_S)
        finally:
            os.close(watch)

    assert ended == [watch]
    assert not socket_path.parent.exists()


def sent_config(env: Any, **keywords: Any) -> dict[str, Any]:
    """Return the configuration that `make` sends to a server of its own."""
    provider = RecordingProvider()
    with pytest.raises(StartupError):
        ew.make(env, provider=provider, docker_image="image", **keywords)
    ((_, config),) = provider.asked
    return config


def test_only_what_a_module_defines_can_be_imported() -> None:
    class Local(CounterEnv):
        pass

    assert sent_config(Tally)["id"] == "pkg://environments.served:Tally"
    for refused in (Local, lambda: CounterEnv(), functools.partial(CounterEnv)):
        with pytest.raises(DefinitionError, match="HTTP needs an importable definition"):
            ew.make(refused, backend="http")


def test_a_class_of_the_program_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "__module__", "__main__")

    with pytest.raises(DefinitionError, match="defined in the program itself"):
        ew.make(Tally, backend="http")


def test_an_existing_object_cannot_be_sent_to_a_server() -> None:
    with pytest.raises(DefinitionError, match="CounterEnv object exists already"):
        ew.make(CounterEnv(), backend="http")


@pytest.mark.parametrize("value", [object(), {1}, (1, 2), float("nan"), b"raw", {1: 2}])
def test_a_keyword_that_is_not_json_is_refused_by_name(value: object) -> None:
    with pytest.raises(OptionError, match=r"done_at=.*cannot be sent to a server"):
        ew.make("counter-v0", backend="http", done_at=value)


def test_an_environment_made_elsewhere_is_sent_by_its_id() -> None:
    pytest.importorskip("gymnasium")

    config = sent_config("gym://CartPole-v1", render_mode=None)

    assert config["id"] == "gym://CartPole-v1"
    assert config["kwargs"] == {"render_mode": None}
