"""A vector at a server with cut connections, lost sessions and hung steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from environments.served import Tally
from hostile_servers import CuttingProxy
from servers import lose_session, process_serving, served

import envweave as ew
from envweave.errors import EnvironmentLostError, ResetNeededError, StateFailedError

STEP = {"do": "step"}


@contextmanager
def cut(seed: int, mean_bytes: int) -> Iterator[CuttingProxy]:
    with served(Tally) as url:
        address = ("127.0.0.1", urlsplit(url).port or 0)
        with CuttingProxy(address, seed=seed, mean_bytes=mean_bytes) as proxy:
            yield proxy


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_cut_at_random_points_every_step_is_taken_exactly_once(encoding: str) -> None:
    count, n = 120, 6
    with cut(11, 8_000) as proxy:
        made = Tally.made
        where = f"http://127.0.0.1:{proxy.port}"
        with ew.make_vector(where, num_envs=n, encoding=encoding) as venv:
            began = venv.reset(seed=1)
            for i in range(1, count + 1):
                batch = venv.step([STEP] * n)
                assert batch.current["at"].tolist() == [i] * n
                assert batch.episode_id == began.episode_id
            ends = [state.at for state in venv.state()]  # type: ignore[attr-defined]
            proxy.is_cutting = False

    assert ends == [count] * n
    assert proxy.cuts > 10
    assert Tally.made <= made + n


def test_cut_connections_neither_lose_nor_repeat_steps_of_send_and_recv() -> None:
    count, n = 400, 5
    taken = [0] * n
    with cut(3, 9_000) as proxy:
        where = f"http://127.0.0.1:{proxy.port}"
        with ew.make_vector(where, num_envs=n) as venv:
            venv.reset(seed=1)
            venv.send([STEP] * n)
            while sum(taken) < count:
                batch = venv.recv(min_ready=2)
                for row, at in zip(batch.ids.tolist(), batch.current["at"].tolist(), strict=True):
                    taken[row] += 1
                    assert at == taken[row]
                venv.send([STEP] * len(batch), ids=batch.ids)
            for row in venv.drain().ids.tolist():
                taken[row] += 1
            ends = [state.at for state in venv.state()]  # type: ignore[attr-defined]
            proxy.is_cutting = False

    assert ends == taken
    assert proxy.cuts > 5


@contextmanager
def running(n: int, **options: Any) -> Iterator[tuple[ew.VectorEnv, Any]]:
    """A vector at a server with workers, whose processes can be ended."""
    with (
        process_serving("pkg://environments.served:Tally", workers=2) as server,
        ew.make_vector(server.url, num_envs=n, **options) as venv,
    ):
        yield venv, server


@pytest.mark.slow  # starts the command line anew
def test_rows_of_a_dead_worker_are_lost_and_begin_again() -> None:
    with running(4, autoreset=True) as (venv, _):
        began = venv.reset(seed=3)
        venv.step([STEP] * 4)
        homes = [state.pid for state in venv.state()]  # type: ignore[attr-defined]
        os.kill(homes[0], signal.SIGKILL)

        batch = venv.step([STEP] * 4)
        later = venv.step([STEP] * 4)

    lost = [home == homes[0] for home in homes]
    assert batch.done.tolist() == lost
    assert [row.end.reason for row in batch if row.end] == ["lost"] * sum(lost)
    assert np.isnan(batch.reward).tolist() == lost
    assert batch.successor["at"].tolist() == [1 if gone else 2 for gone in lost]
    assert batch.current["at"].tolist() == [0 if gone else 2 for gone in lost]
    assert later.step_index.tolist() == [1 if gone else 3 for gone in lost]
    for row, gone in enumerate(lost):
        prefix = began.episode_id[row].rpartition("-")[0]
        assert later.episode_id[row] == f"{prefix}-{int(gone)}"


@pytest.mark.slow  # starts the command line anew
def test_a_killed_server_is_reported_in_every_row() -> None:
    with (
        process_serving("pkg://environments.served:Tally") as server,
        ew.make_vector(server.url, num_envs=3) as venv,
    ):
        venv.reset(seed=0)
        impatient(venv)
        server.process.kill()
        server.process.wait()

        batch = venv.step([STEP] * 3)

        assert [row.end.reason for row in batch] == ["lost"] * 3
        assert [row.end.blame for row in batch] == ["infrastructure"] * 3
        assert batch.needs_reset.all()
        with pytest.raises(ResetNeededError):
            venv.step([STEP] * 3)
        with pytest.raises(EnvironmentLostError, match="Environment 0: "):
            venv.reset(seed=0)
        with pytest.raises(StateFailedError):
            venv.state()


def impatient(venv: ew.VectorEnv) -> None:
    """Let a vector try for a moment only to reach its server again."""
    transport: Any = venv._transport
    transport._calls.connection._backoff._limit_s = 0.3


def test_a_lost_session_is_replaced_when_its_row_is_reset() -> None:
    with served(Tally) as url, ew.make_vector(url, num_envs=3) as venv:
        began = venv.reset(seed=0)
        venv.step([STEP] * 3)
        lose_session(venv, 1)

        batch = venv.step([STEP] * 3)
        again = venv.reset(ids=[1])
        later = venv.step([STEP] * 3)

    assert batch.done.tolist() == [False, True, False]
    assert batch[1].end.reason == "lost"
    assert batch.successor["at"].tolist() == [2, 1, 2]
    assert again.episode_id[1] == began.episode_id[1].rpartition("-")[0] + "-1"
    assert later.current["at"].tolist() == [3, 1, 3]


def test_a_step_past_its_deadline_ends_one_row() -> None:
    Tally.hung.clear()
    with served(Tally) as url, ew.make_vector(url, num_envs=3, timeout_s=0.5) as venv:
        venv.reset(seed=0)

        batch = venv.step([STEP, {"do": "hang"}, STEP])
        Tally.hung.set()
        venv.reset(ids=[1])
        later = venv.step([STEP] * 3)

    assert batch.valid.tolist() == [True, False, True]
    assert batch[1].end.reason == "timeout"
    assert later.current["at"].tolist() == [2, 1, 2]


@dataclass
class Wide(ew.Observation):
    cells: np.ndarray


class Widens(ew.Environment):
    """Shows three numbers, and after two steps four."""

    def reset(self) -> Wide:
        self.at = 0
        return Wide(np.zeros(3))

    def step(self, action: int) -> Wide:
        self.at += 1
        return Wide(np.full(3 if self.at < 2 + action else 4, self.at, float), reward=1.0)


def test_an_observation_that_does_not_fit_the_columns_ends_its_row() -> None:
    with (
        served(Widens) as url,
        ew.make_vector(Widens, num_envs=2, backend="http", base_url=url, autoreset=True) as far,
        ew.make_vector(Widens, num_envs=2, autoreset=True) as near,
    ):
        batches = []
        for venv in (far, near):
            venv.reset()
            venv.step([0, 1])
            batches.append(venv.step([0, 1]))

    one, other = batches
    assert one.valid.tolist() == other.valid.tolist() == [False, True]
    assert one[0].end == other[0].end
    np.testing.assert_equal(one.successor, other.successor)
    np.testing.assert_equal(one.current, other.current)


def test_an_interrupted_step_can_still_be_received() -> None:
    Tally.hung.clear()
    Tally.hanging.clear()
    with served(Tally) as url, ew.make_vector(url, num_envs=3) as venv:
        venv.reset(seed=0)
        threading.Thread(target=interrupt_when_hanging).start()

        with pytest.raises(KeyboardInterrupt):
            venv.step([STEP, {"do": "hang"}, STEP])
        in_flight = venv.in_flight
        Tally.hung.set()
        batch = venv.drain()
        later = venv.step([STEP] * 3)

    assert in_flight == 3
    assert sorted(batch.ids.tolist()) == [0, 1, 2]
    assert batch.current["at"].tolist() == [1, 1, 1]
    assert later.current["at"].tolist() == [2, 2, 2]


def interrupt_when_hanging() -> None:
    assert Tally.hanging.wait(20)
    # Of this very thread, since another one's would not end what it waits for.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
