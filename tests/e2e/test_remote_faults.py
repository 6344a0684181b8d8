"""Servers and clients that hang, crash, fall silent or are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from environments.served import Tally
from servers import process_serving, served, wait_for

import envweave as ew
from envweave import errors

TALLY = "pkg://environments.served:Tally"


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    Tally.hung.clear()
    Tally.hanging.clear()
    yield
    Tally.hung.set()


@pytest.mark.slow  # starts server processes
def test_a_killed_server_is_reported_as_lost_and_never_continued() -> None:
    with process_serving(TALLY) as first, ew.make(first.url) as env:
        impatient(env)
        start = env.reset(seed=3)
        env.step({"do": "step"})
        first.process.send_signal(signal.SIGKILL)

        result = env.step({"do": "step"})

        assert result.end is not None
        assert (result.end.reason, result.end.blame) == ("lost", "infrastructure")
        assert (result.observation.at, result.valid) == (1, False)
        with pytest.raises(errors.ResetNeededError):
            env.step({"do": "step"})
        with pytest.raises(errors.EnvironmentLostError):
            env.reset()
        first.process.wait(30)
        with process_serving(TALLY, port=first.port):
            again = env.reset()

            assert again.episode_id != start.episode_id
            assert again.info["seed"] == ew_seed(3, 1)
            assert env.step({"do": "step"}).observation.at == 1


def impatient(env: ew.Env) -> None:
    """Let an environment try for a moment only to reach its server again."""
    transport: Any = env._transport
    transport._connection._backoff._limit_s = 1.0


def ew_seed(base: int, k: int) -> int:
    from envweave.session import episode_seed

    return episode_seed(base, k)


@pytest.mark.parametrize("silence_s", [0.5, pytest.param(120.0, marks=pytest.mark.slow)])
@pytest.mark.timeout(200)
def test_a_client_idle_for_long_continues_the_same_episode(silence_s: float) -> None:
    with served(Tally) as url, ew.make(url) as env:
        start = env.reset(seed=1)
        env.step({"do": "step"})
        time.sleep(silence_s)  # the silence itself is what is tested

        result = env.step({"do": "step"})

    assert (result.observation.at, result.episode_id) == (2, start.episode_id)


def test_a_hung_step_ends_as_a_timeout_and_its_neighbors_continue() -> None:
    with served(Tally, max_sessions=3) as url:
        with ew.make(url, timeout_s=0.5) as slow, ew.make(url) as near, ew.make(url) as far:
            for env in (slow, near, far):
                env.reset(seed=1)
            hanging = threading.Thread(target=lambda: results.append(slow.step({"do": "hang"})))
            results: list[Any] = []
            hanging.start()
            assert Tally.hanging.wait(30)

            meanwhile = [env.step({"do": "step"}).observation.at for env in (near, far)]

            hanging.join(20)
            (result,) = results
            assert meanwhile == [1, 1]
            assert (result.end.reason, result.end.blame) == ("timeout", "environment")
            assert slow.reset().observation.at == 0
            assert slow.step({"do": "step"}).observation.at == 1
        with ew.make(url) as env:  # its place is free
            env.reset()


@pytest.mark.slow  # starts server processes
def test_a_client_killed_in_mid_step_frees_its_session() -> None:
    code = (
        "import sys, envweave as ew\n"
        "env = ew.make(sys.argv[1]); env.reset(); env.step({'do': 'hang'})\n"
    )
    with served(Tally, max_sessions=1, resume_ttl_s=0.2) as url:
        client = subprocess.Popen([sys.executable, "-c", code, url])
        try:
            assert Tally.hanging.wait(30)
        finally:
            client.kill()
            client.wait()
        Tally.hung.set()

        with ew.make(url, wait_s=20.0) as env:
            assert env.reset().observation.at == 0


@pytest.mark.slow  # starts server processes
def test_under_workers_a_crash_loses_only_that_workers_sessions() -> None:
    with process_serving(TALLY, workers=2) as server:
        envs = [ew.make(server.url) for _ in range(4)]
        try:
            for env in envs:
                env.reset(seed=1)
            pids = [env.state().pid for env in envs]  # type: ignore[attr-defined]

            result = envs[0].step({"do": "crash"})

            assert result.end is not None
            assert result.end.reason == "lost"
            assert "SIGSEGV" in (result.end.cause or "")
            for env, pid in zip(envs[1:], pids[1:], strict=True):
                other = env.step({"do": "step"})
                assert (other.end is not None) == (pid == pids[0])
            assert len(set(pids)) == 2
            assert envs[0].reset().observation.at == 0
            assert envs[0].step({"do": "step"}).observation.at == 1
            assert server.process.poll() is None
        finally:
            for env in envs:
                env.close()


@pytest.mark.slow  # starts server processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopping_server_finishes_64_episodes(workers: int) -> None:
    with process_serving(TALLY, workers=workers, drain_s=20.0) as server:
        with ew.make_vector(server.url, num_envs=64) as venv:
            venv.reset(seed=0)
            pids = {state.pid for state in venv.state()}  # type: ignore[attr-defined]

            server.process.terminate()
            steps = [venv.step([{"do": "step"}] * 64) for _ in range(3)]
            last = venv.step([{"do": "end"}] * 64)

        assert all(batch.valid.all() for batch in steps)
        assert last.terminated.all()
        assert server.process.wait(20) == 0
        wait_for(lambda: not any(_is_alive(pid) for pid in pids))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow  # starts Python anew
def test_the_sessions_of_a_killed_client_are_free_again() -> None:
    code = (
        "import sys, envweave as ew\n"
        "venv = ew.make_vector(sys.argv[1], num_envs=8); venv.reset()\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with served(Tally, max_sessions=8, resume_ttl_s=0.2) as url:
        client = subprocess.Popen(
            [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdout is not None
        assert client.stdin is not None
        assert client.stdout.readline() == b"ready\n"
        client.kill()
        client.wait()
        client.stdout.close()
        client.stdin.close()

        with ew.make_vector(url, num_envs=8, wait_s=20.0) as venv:
            assert venv.reset().current["at"].tolist() == [0] * 8
