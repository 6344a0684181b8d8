"""The private part of a task reaches its environment and no one else, on every path."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from environments.tasks import CHECK, MARKER, PUBLIC, Careless, Do, EndlessCareless, secret_task
from hostile_servers import CuttingProxy
from servers import WebSocket, host_and_port, http_connection, open_websocket, served, wait_for

import envweave as ew
from envweave.codec import to_plain
from envweave.errors import EnvWeaveError, TaskError
from envweave.wire.encoding import ENCODINGS, JSON, MSGPACK, PLAIN_JSON

FAILURES = ["message", "with the task", "key", "action"]


class Recorded:
    """A server behind a proxy that keeps every byte the server sends."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self.url = f"http://127.0.0.1:{proxy.port}"
        self._proxy = proxy

    @property
    def bytes(self) -> bytes:
        return bytes(self._proxy.sent_by_server)


@contextmanager
def recorded(env: Any, **options: Any) -> Iterator[Recorded]:
    with served(env, **options) as url, CuttingProxy(host_and_port(url), records=True) as proxy:
        yield Recorded(proxy)


@pytest.fixture
def watched(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Any]]:
    """Serves an environment of which no byte may hold the marker: on the network, and in logs."""
    caplog.set_level("DEBUG")
    servers: list[Recorded] = []
    with ExitStack() as stack:

        def watch(**options: Any) -> Recorded:
            servers.append(stack.enter_context(recorded(Careless, **options)))
            return servers[-1]

        yield watch
    printed = capfd.readouterr()
    assert MARKER not in caplog.text + printed.out + printed.err
    for server in servers:
        assert PUBLIC.encode() in server.bytes, "nothing was recorded"
        assert MARKER.encode() not in server.bytes


@pytest.fixture
def server(watched: Callable[..., Any]) -> Any:
    return watched()


def play(env: Any) -> list[Any]:
    """Look at all that a caller can get hold of; return it."""
    seen: list[Any] = [list(env.tasks("train")), list(env.tasks("test")), env.tasks.get("b")]
    for task in (None, "a", env.tasks.get("a"), secret_task("a")):
        seen += [env.reset(task=task), env.state()]
        last = env.step(CHECK)
        assert (last.reward, last.terminated) == (1.0, True)
        seen.append(last)
    for how in FAILURES:
        env.reset(task="c")
        seen += [outcome(env.step, Do(how)), outcome(env.state)]
        seen.append(outcome(env.reset, task="a", options={"fail": how}))
    for task in ("d", ew.Task("a", data={"prompt": "another"}), secret_task("d")):
        seen.append(outcome(env.reset, task=task))
    return seen


def outcome(call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    try:
        return call(*args, **keywords)
    except EnvWeaveError as error:
        return error


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_our_own_dialect_shows_nothing_private(server: Recorded, encoding: str) -> None:
    with ew.make(server.url, encoding=encoding) as env:
        seen = play(env)

    assert MARKER not in f"{seen!r} {pickle.dumps(seen)!r}"


@pytest.mark.slow
def test_worker_processes_of_a_server_show_nothing_private(watched: Callable[..., Any]) -> None:
    server = watched(workers=1)

    with ew.make(server.url) as env:
        seen = play(env)

    assert MARKER not in f"{seen!r} {pickle.dumps(seen)!r}"


def test_a_remote_vector_shows_nothing_private(server: Recorded) -> None:
    with ew.make_vector(server.url, num_envs=2) as venv:
        venv.reset(task=[venv.tasks.get("a"), "c"])
        batch = venv.step([CHECK] * 2)

    assert batch.reward.tolist() == [1.0, 1.0]
    assert MARKER not in f"{batch!r} {[batch[0], batch[1]]!r}"


def test_plain_http_shows_nothing_private(server: Recorded) -> None:
    with ew.HTTPEnvClient[Any, Any](server.url) as env:
        env.reset(task=secret_task("b"))
        env.state()
        assert env.step(CHECK).reward == 1.0
        for how in FAILURES:
            env.reset(task="a")
            outcome(env.step, Do(how))
            outcome(env.reset, options={"fail": how})


def test_openenvs_dialect_shows_nothing_private(server: Recorded) -> None:
    socket = open_websocket(server.url, "/ws")
    try:
        for data in ({}, {"task": "a"}, {"task": {"id": "a", "private": {"answer": 1}}}):
            _ask(socket, {"type": "reset", "data": data})
        for action in [*FAILURES, CHECK.what]:
            _ask(socket, {"type": "reset", "data": {"task": "a"}})
            _ask(socket, {"type": "step", "data": {"what": action}})
            _ask(socket, {"type": "state"})
    finally:
        socket.close()


def test_calls_by_hand_show_nothing_private(server: Recorded) -> None:
    socket = open_websocket(server.url, subprotocols=[JSON.subprotocol])
    try:
        listed = _ask(socket, {"id": 1, "method": "tasks", "params": {"split": "train"}})
        one = _ask(socket, {"id": 2, "method": "task", "params": {"id": "a"}})
        described = _ask(socket, {"id": 3, "method": "describe"})
    finally:
        socket.close()

    assert listed["result"][0] == one["result"]
    assert one["result"] == {
        "id": "a",
        "split": "train",
        "data": {"prompt": PUBLIC, "shape": [1, 2]},
        "image": None,
        "limits": None,
        "private": {"withheld": True},
    }
    assert described["result"]["splits"] == {"train": 2, "test": 1}


def _ask(socket: WebSocket, message: Any) -> Any:
    socket.send(json.dumps(message))
    return json.loads(str(socket.receive(20)))


def test_the_pages_of_a_server_show_nothing_private(server: Recorded) -> None:
    with ew.make(server.url) as env:
        env.reset(task="a")
        env.step({"what": "message"})
    rpc = {"jsonrpc": "2.0", "id": 1, "params": {}}
    for method in ("initialize", "tools/list", "tools/call", "resources/list", "prompts/list"):
        _fetch(server.url, "POST", "/mcp", json.dumps({**rpc, "method": method}))
    for path in ("/openapi.json", "/metrics", "/health", "/ready", "/schema", "/metadata", "/docs"):
        _fetch(server.url, "GET", path)
    for path in ("/", "/web", "/tasks", "/state", "/sessions", "/none"):
        _fetch(server.url, "GET", path)


def _fetch(url: str, method: str, path: str, body: str | None = None) -> None:
    connection = http_connection(url)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        connection.getresponse().read()
    finally:
        connection.close()


def test_a_rollout_over_http_shows_nothing_private(server: Recorded) -> None:
    with ew.pool(server.url, size=2) as pool:
        episodes = ew.rollout(
            pool, lambda result: CHECK, tasks=pool.tasks("train"), progress=False
        ).run()

    assert [episode.reward for episode in episodes] == [1.0, 1.0]
    assert MARKER not in f"{episodes!r} {pickle.dumps(episodes)!r}"


@pytest.mark.parametrize(
    "env", [Careless, pytest.param(EndlessCareless, marks=pytest.mark.slow)], ids=str
)
def test_a_worker_process_sends_nothing_private_back(env: type[Careless]) -> None:
    ids = ("train-1", "test-3") if env is EndlessCareless else ("a", "c")
    with ew.make(env, backend="process") as remote:
        seen: list[Any] = [remote.tasks.get(ids[0])]
        for task in (None, *ids, seen[0], secret_task("own")):
            seen += [remote.reset(task=task), remote.state(), remote.step(CHECK)]
            assert seen[-1].reward == 1.0
        for how in FAILURES:
            remote.reset()
            seen += [outcome(remote.step, Do(how)), outcome(remote.state)]
            seen.append(outcome(remote.reset, options={"fail": how}))

    assert MARKER not in f"{seen!r} {pickle.dumps(seen)!r}"


@pytest.mark.slow
def test_a_process_vector_and_a_pool_send_nothing_private_back() -> None:
    with ew.make_vector(Careless, num_envs=2, backend="process", workers=1) as venv:
        tasks = list(venv.tasks("train"))
        venv.reset(task=tasks)
        batch = venv.step([CHECK] * 2)
        rewards = batch.reward.tolist()
    with ew.pool(Careless, size=1, backend="process") as pool:
        episodes = ew.rollout(pool, lambda result: CHECK, tasks=[*tasks, secret_task("own")]).run()

    assert rewards + [episode.reward for episode in episodes] == [1.0] * 5
    seen = [tasks, batch[0], batch[1], episodes]
    assert MARKER not in f"{seen!r} {pickle.dumps(seen)!r}"


def test_recordings_show_nothing_private(watched: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with ew.make(Careless, record=folder) as env:
        tasks = [next(iter(env.tasks("train"))), secret_task("own")]
        for task in tasks:
            env.reset(task=task)
            env.step(CHECK)
    with ew.make_vector(Careless, num_envs=2, record=folder) as venv:
        venv.reset(task=tasks)
        venv.step([CHECK] * 2)
    with ew.pool(Careless, size=1, record=folder) as pool:
        ew.rollout(pool, lambda result: CHECK, tasks=tasks).run()
    server = watched(record=str(folder))
    with ew.make(server.url) as env:
        for failure in ("", *FAILURES):
            env.reset(task=next(iter(env.tasks("train"))).id)
            with contextlib.suppress(EnvWeaveError):
                env.step(Do(failure) if failure else CHECK)

    wait_for(lambda: len(ew.load(folder)) == 11)  # the server writes from a thread of its own
    recording = ew.load(folder)
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert MARKER.encode() not in written
    shown = [(episode.to_dict(), episode.messages()) for episode in recording]
    assert MARKER not in f"{shown!r} {list(recording)!r}"


@pytest.mark.parametrize("env", [Careless, EndlessCareless], ids=str)
def test_in_one_process_a_caller_has_tasks_without_their_private_part(
    env: type[Careless], caplog: pytest.LogCaptureFixture
) -> None:
    with ew.make(env) as local:
        tasks = [next(iter(local.tasks("train"))), next(iter(local.tasks("test")))]
        played = [(local.reset(task=one), local.step(CHECK)) for one in tasks]
        drawn = local.reset(seed=3)

    assert [last.reward for _, last in played] == [1.0, 1.0]
    assert [one.private for one in tasks] == [ew.Task("x", private={"y": 1}).public().private] * 2
    assert MARKER not in f"{tasks!r} {pickle.dumps(tasks)!r} {played!r} {drawn!r} {caplog.text}"


def test_an_episode_keeps_its_task_without_the_private_part() -> None:
    with ew.pool(Careless, size=1) as pool:
        (episode,) = ew.rollout(pool, lambda result: CHECK, tasks=[secret_task("own")]).run()

    assert episode.reward == 1.0
    assert episode.task == secret_task("own").public()
    assert MARKER not in f"{episode!r} {pickle.dumps(episode.task)!r}"


def test_no_encoder_opens_a_private_part() -> None:
    task = secret_task("a")
    holders = [
        task,
        task.private,
        {"deep": [task]},
        ew.Episode(task=task, end=ew.EpisodeEnd("error")),
    ]
    entangled: list[Any] = [task, 2**80]
    entangled.append(entangled)

    written = [one.encode(held) for one in (MSGPACK, JSON, PLAIN_JSON) for held in holders]
    written += [one.encode(entangled) for one in (MSGPACK, JSON, PLAIN_JSON)]

    assert MARKER not in repr(written)
    assert MARKER not in f"{to_plain(holders)} {dataclasses.asdict(task)} {holders!s}"
    with pytest.raises(TypeError):
        json.dumps(dataclasses.asdict(task))


def test_a_copy_of_a_task_is_whole() -> None:
    task = secret_task("a")

    copies = [copy.copy(task), copy.deepcopy(task), pickle.loads(pickle.dumps(task))]

    assert copies == [task] * 3
    assert copies[2].private["answer"] == MARKER


def test_reading_withheld_data_raises_with_where_it_is() -> None:
    with ew.make(Careless) as env:
        task = env.tasks.get("a")

    for read in (lambda: task.private["answer"], lambda: task.private.get("answer")):
        with pytest.raises(TaskError, match="stays with its environment"):
            read()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (secret_task("mine"), "The private part of task 'mine' was withheld"),
        (ew.Task("a", data={"prompt": "another"}), "Pass task='a', or give your own task another"),
        (ew.Task("b"), "Pass task='b'"),
    ],
)
def test_an_unsupported_task_of_the_caller_is_refused(task: ew.Task, message: str) -> None:
    with served(Careless) as url, ew.make(url) as env, pytest.raises(TaskError) as refused:
        env.reset(task=task)

    assert message in str(refused.value)


def test_a_task_that_was_saved_and_loaded_is_resolved_by_the_environment() -> None:
    with ew.make(Careless) as env:
        task = env.tasks.get("a")
        written = json.dumps({"id": task.id, "split": task.split, "data": task.data})

        env.reset(task=ew.Task(**json.loads(written)))

        assert env.step(CHECK).reward == 1.0


def test_a_callers_task_without_a_private_part_is_used_unchanged() -> None:
    with served(Careless) as url, ew.make(url) as env:
        result = env.reset(task=ew.Task("mine", data={"prompt": "mine"}))

    assert result.observation.task["data"] == {"prompt": "mine"}
