"""`HTTPEnvClient` with bad connections, and with servers that are not envweave's."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from environments.served import Tally, TallyAction, TallyObservation
from hostile_servers import CuttingProxy
from servers import served

import envweave as ew
from envweave.errors import ActionError, ConnectionLostError, DeadlineError, ServerError, WireError
from envweave.examples import CounterAction, CounterObservation


class TallyClient(ew.HTTPEnvClient[TallyAction, TallyObservation]):
    pass


class CounterClient(ew.HTTPEnvClient[CounterAction, CounterObservation]):
    pass


@pytest.mark.slow  # starts the command line anew
def test_cut_at_random_points_every_step_is_taken_exactly_once() -> None:
    count = 150
    with served(Tally) as url:
        address = ("127.0.0.1", urlsplit(url).port or 0)
        made = Tally.made
        with (
            CuttingProxy(address, seed=5, mean_bytes=1500) as proxy,
            TallyClient(f"http://127.0.0.1:{proxy.port}") as env,
        ):
            env.reset(seed=1)
            shown = [env.step(TallyAction()).observation.at for _ in range(count)]
            state: Any = env.state()
            proxy.is_cutting = False

    assert shown == list(range(1, count + 1))
    assert state.at == count
    assert proxy.cuts > 20
    assert Tally.made == made  # the one that was there to be looked at


def test_a_step_timeout_extends_the_request_timeout() -> None:
    Tally.hung.clear()
    Tally.hanging.clear()
    with served(Tally) as url, TallyClient(url, request_timeout_s=0.2) as env:
        env.reset()
        threading.Timer(0.6, Tally.hung.set).start()

        result = env.step(TallyAction("hang"), timeout_s=30)

    assert result.observation.at == 1


@pytest.mark.slow  # waits for a deadline
def test_a_timeout_is_reported_with_the_request_id() -> None:
    Tally.hung.clear()
    with served(Tally) as url, TallyClient(url, request_timeout_s=1.0) as env:
        env.reset()

        with pytest.raises(DeadlineError, match="may still be running there") as caught:
            env.step(TallyAction("hang"))
        Tally.hung.set()
        known_as = caught.value.__notes__[0].split("'")[1]
        result = env.step(TallyAction("hang"), request_id=known_as)

        assert result.observation.at == 1
        assert env.state().step_count == 1


class SeedServer(http.server.BaseHTTPRequestHandler):
    """Speaks the protocol in its first form: one session, `obs` for `observation`."""

    protocol_version = "HTTP/1.1"
    value = 0
    calls = 0
    hangs_up = False

    def do_POST(self) -> None:
        server = type(self)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/reset":
            server.value = 0
            self._answer(200, {"obs": {"value": 0}, "done": False})
        elif self.path == "/step" and "delta" not in body["action"]:
            self._answer(422, {"detail": "delta is missing"})
        elif self.path == "/step":
            server.calls += 1
            server.value += body["action"]["delta"]
            if server.hangs_up:
                self.close_connection = True
                return
            done = server.value >= 2
            self._answer(200, {"obs": {"value": server.value}, "reward": True, "done": done})
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_GET(self) -> None:
        if self.path == "/state":
            self._answer(200, {"episode_id": "e", "step_count": 1, "mood": "good"})
        else:
            self._answer(404, {"detail": "Not Found"})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running(kind: Any) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_without_sessions_is_called_without_one() -> None:
    class Kind(SeedServer):
        pass

    with running(Kind) as url, CounterClient(url) as env:
        began = env.reset()
        first = env.step(CounterAction(delta=1))
        last = env.step(CounterAction(delta=1))
        state: Any = env.state()
        with pytest.raises(ActionError, match="delta is missing"):
            env.step({"x": 1})  # type: ignore[arg-type]

    assert began.observation == CounterObservation(0)
    assert (first.reward, first.done, first.needs[0].observation.value) == (1.0, False, 1)
    assert (last.terminated, last.truncated) == (True, False)
    assert last.end == ew.EpisodeEnd("terminated")
    assert (state.episode_id, state.step_count, state.mood) == ("e", 1, "good")


def test_nothing_is_repeated_at_a_server_without_sessions() -> None:
    class Kind(SeedServer):
        pass

    with running(Kind) as url, CounterClient(url) as env:
        env.reset()
        Kind.hangs_up = True

        with pytest.raises(ConnectionLostError, match="broke"):
            env.step(CounterAction(delta=1))

    assert Kind.calls == 1


def test_nonsensical_responses_are_wire_errors() -> None:
    class Nonsense(SeedServer):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(404 if self.path == "/sessions" else self.status, self.body)

        status, body = 200, ["no", "object"]

    with running(Nonsense) as url, CounterClient(url) as env:
        with pytest.raises(WireError, match="other than an object"):
            env.reset()
        Nonsense.body = {"reward": 1}  # type: ignore[assignment]
        with pytest.raises(WireError, match="has no observation, only 'reward'"):
            env.reset()
        Nonsense.body = {"obs": {"value": 0}, "requests": [{"type": "wish"}]}  # type: ignore[assignment]
        with pytest.raises(WireError, match="request of an unknown type"):
            env.reset()
        Nonsense.status = 500
        with pytest.raises(ServerError, match="status 500"):
            env.reset()
