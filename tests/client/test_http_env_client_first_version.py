"""`HTTPEnvClient` and servers of the protocol's first version, in both directions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict
from servers import app_served, served

import envweave as ew
from envweave.envs.echo_env import EchoAction, EchoEnv, EchoObservation
from envweave.errors import ConnectionLostError


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetBody(Strict):
    pass


class Message(Strict):
    message: str


class StepBody(Strict):
    action: Message
    timeout_s: int


@contextmanager
def strict_server() -> Iterator[tuple[str, list[str]]]:
    """Serve `POST /reset`, `POST /step` and `GET /state` alone; any other body key is refused."""
    app = FastAPI()
    seen: list[str] = []

    @app.middleware("http")
    async def note(request: Request, call_next: Any) -> Any:
        body = (await request.body()).decode()
        seen.append(f"{request.method} {request.url.path} {body}".strip())
        return await call_next(request)

    @app.post("/reset")
    def reset(body: ResetBody) -> dict[str, Any]:
        return {"observation": {"echoed_message": "ready"}, "reward": None, "done": False}

    @app.post("/step")
    def step(body: StepBody) -> dict[str, Any]:
        text = body.action.message
        return {"observation": {"echoed_message": text}, "reward": 1.0, "done": text == "bye"}

    @app.get("/state")
    def state() -> dict[str, Any]:
        return {"episode_id": "one", "step_count": 2}

    with app_served(app) as url:
        yield url, seen


class OwnEcho(ew.HTTPEnvClient[EchoAction, EchoObservation]):
    """A client with the three methods written out."""

    def _step_payload(self, action: EchoAction) -> dict[str, Any]:
        return {"message": action.message}

    def _parse_result(self, payload: dict[str, Any]) -> ew.StepResult[EchoObservation]:
        return ew.StepResult(
            observation=EchoObservation(**payload["observation"]),
            reward=payload.get("reward"),
            done=payload.get("done", False),
        )

    def _parse_state(self, payload: dict[str, Any]) -> ew.State:
        return ew.State(**payload)


@pytest.mark.parametrize("client", [OwnEcho, EchoEnv])
def test_a_server_with_three_paths_that_refuses_unknown_keys_is_played(client: Any) -> None:
    with strict_server() as (url, seen), client(url) as env:
        began = env.reset()
        first = env.step(EchoAction("hi"))
        last = env.step(EchoAction("bye"))
        state = env.state()

    assert began.observation.echoed_message == "ready"
    assert (first.observation.echoed_message, first.reward, first.done) == ("hi", 1.0, False)
    assert last.terminated
    assert (state.episode_id, state.step_count) == ("one", 2)
    assert [one for one in seen if "/schema" not in one] == [
        "POST /sessions {}",
        "POST /reset {}",
        'POST /step {"action":{"message":"hi"},"timeout_s":15}',
        'POST /step {"action":{"message":"bye"},"timeout_s":15}',
        "GET /state",
    ]


def test_options_of_the_caller_are_sent_to_such_a_server_too() -> None:
    with strict_server() as (url, seen), EchoEnv(url, 3.7) as env:
        with pytest.raises(ew.errors.OptionError, match="seed"):
            env.reset(seed=7)
        env.step(EchoAction("hi"))
        with pytest.raises(ew.errors.ActionError, match="request_id"):
            env.step(EchoAction("hi"), request_id="mine")

    assert seen[1:] == [
        'POST /reset {"seed":7}',
        'POST /step {"action":{"message":"hi"},"timeout_s":3}',
        'POST /step {"action":{"message":"hi"},"timeout_s":3,"request_id":"mine"}',
    ]


def test_the_four_arguments_are_taken_by_position() -> None:
    class Noted(ew.ContainerProvider):
        stopped = False

        def start_container(self, image: str, *_: Any, **__: Any) -> str:
            raise NotImplementedError

        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
            raise NotImplementedError

        def stop_container(self) -> None:
            self.stopped = True

    provider = Noted()
    with served(ew.examples.CounterEnv, token="open") as url:
        headers = {"Authorization": "Bearer open"}
        with ew.HTTPEnvClient[Any, Any](url + "/", 5.0, headers, provider) as env:
            assert env.reset().observation.value == 0

    assert provider.stopped


def test_a_dict_is_an_action_for_a_client_with_its_own_payload_too() -> None:
    with served(ew.envs.echo_env.EchoEnvironment) as url, OwnEcho(url) as env:
        env.reset()

        assert env.step({"message": "hi"}).reward == 0.2
        with pytest.raises(ew.errors.ActionError, match="Did you mean 'message'"):
            env.step({"mesage": "hi"})


class FirstClient:
    """How a client of the first form calls a server: by three paths, and with `requests`."""

    def __init__(self, base_url: str) -> None:
        self._base, self._http = base_url, requests.Session()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._http.post(self._base + path, json=body, timeout=15)
        answer.raise_for_status()
        return answer.json()

    def state(self) -> Any:
        answer = self._http.get(self._base + "/state", timeout=15)
        answer.raise_for_status()
        return answer.json()


@pytest.mark.parametrize("is_object", [False, True], ids=["class", "object"])
def test_a_client_of_the_first_version_works_with_the_current_server(is_object: bool) -> None:
    env = ew.examples.CounterEnv(done_at=2)
    with served(*[env] if is_object else [lambda: ew.examples.CounterEnv(done_at=2)]) as url:
        client = FirstClient(url)
        began = client.post("/reset", {})
        steps = [client.post("/step", {"action": {"delta": 1}, "timeout_s": 15}) for _ in range(2)]
        state = client.state()
        with pytest.raises(requests.HTTPError):
            client.post("/step", {"action": {"delta": 1}, "timeout_s": 15})
        client._http.close()

    assert (began["observation"]["value"], began["done"]) == (0, False)
    assert [(one["observation"]["value"], one["reward"], one["done"]) for one in steps] == [
        (1, 1.0, False),
        (2, 1.0, True),
    ]
    assert state["step_count"] == 2


class OneArgument:
    """A provider of one's own with the three methods, and no base class."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[Any] = []

    def start_container(self, image: str, **kwargs: Any) -> str:
        self.calls.append(("start", image, kwargs))
        return self.url

    def wait_for_ready(self, base_url: str) -> None:
        self.calls.append(("wait", base_url))

    def stop_container(self) -> None:
        self.calls.append(("stop",))


def test_a_provider_may_wait_without_a_time_limit() -> None:
    with served(ew.envs.echo_env.EchoEnvironment) as url:
        provider: Any = OneArgument(url)
        with EchoEnv.from_docker_image("echo:1", provider, env_vars={"A": "b"}) as env:
            assert env.reset().observation.echoed_message == "Echo environment ready!"

    assert provider.calls == [
        ("start", "echo:1", {"env_vars": {"A": "b"}}),
        ("wait", url),
        ("stop",),
    ]


@pytest.mark.slow  # starts a server
def test_a_subclass_with_the_first_constructor_is_made_from_an_image() -> None:
    class Own(EchoEnv):
        def __init__(self, base_url: str, provider: Any = None) -> None:
            super().__init__(base_url, 5.0, None, provider)

    with Own.from_docker_image("echo-v0", ew.SubprocessProvider()) as env:
        env.reset()

        assert env.step(EchoAction("hi")).reward == 0.2


def kill(provider: ew.SubprocessProvider) -> None:
    assert provider.pid is not None
    os.kill(provider.pid, signal.SIGKILL)


@pytest.mark.slow  # starts servers
def test_after_its_server_died_the_episode_is_lost_and_reset_starts_another() -> None:
    provider = ew.SubprocessProvider()
    with EchoEnv.from_docker_image("echo-v0", provider) as env:
        env.reset()
        kill(provider)

        with pytest.raises(ConnectionLostError, match=r"SIGKILL.*\n.*lost\. Call reset\(\)"):
            env.step(EchoAction("hi"))
        with pytest.raises(ConnectionLostError, match="SIGKILL"):
            env.state()
        assert env.reset().step_index == 0
        assert env.step(EchoAction("hi")).reward == 0.2

        kill(provider)
        assert env.reset().step_index == 0  # its loss was not noticed yet
    assert provider.pid is None


@pytest.mark.slow  # starts servers
def test_a_reset_that_fails_to_start_another_server_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "fleeting_echo.py"
    module.write_text("from envweave.envs.echo_env import EchoEnvironment")
    monkeypatch.syspath_prepend(tmp_path)
    provider = ew.SubprocessProvider()
    with EchoEnv.from_docker_image("pkg://fleeting_echo:EchoEnvironment", provider) as env:
        env.reset()
        kill(provider)
        away = module.rename(tmp_path / "away.py")

        with pytest.raises(ew.errors.EnvWeaveError, match="fleeting_echo"):
            env.reset()
        with pytest.raises(ConnectionLostError, match=r"could not be started\. Call reset\(\)"):
            env.step(EchoAction("hi"))
        away.rename(module)
        env.reset()

        assert env.step(EchoAction("hi")).reward == 0.2


@pytest.mark.slow  # starts a server
def test_a_client_that_cannot_start_another_server_advises_a_new_client() -> None:
    provider = ew.SubprocessProvider()
    url = provider.start_container("echo-v0")
    provider.wait_for_ready(url)
    with EchoEnv(url, provider=provider) as env:
        env.reset()
        kill(provider)

        with pytest.raises(ConnectionLostError, match="make a new one with from_docker_image"):
            env.reset()


def test_a_provider_without_why_gone_adds_a_note_with_advice() -> None:
    provider: Any = OneArgument("http://127.0.0.1:9")
    with (
        EchoEnv.from_docker_image("echo:1", provider) as env,
        pytest.raises(ConnectionLostError) as caught,
    ):
        env.reset()

    assert "If the container has died: Close this client" in caught.value.__notes__[0]
