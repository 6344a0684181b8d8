"""`HTTPEnvClient`: two lines are enough, and overriding its methods loses nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments.served import Tally, TallyAction, TallyObservation, TallyState
from servers import served, wait_for

import envweave as ew
from envweave.errors import (
    AccessError,
    ActionError,
    ClosedError,
    ConnectionLostError,
    OptionError,
    ResetNeededError,
    SeedError,
    SessionGoneError,
)
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.testing import ScriptedEnvironment


class CounterClient(ew.HTTPEnvClient[CounterAction, CounterObservation]):
    pass


class TallyClient(ew.HTTPEnvClient[TallyAction, TallyObservation]):
    pass


@pytest.fixture(scope="module")
def url():
    with served(CounterEnv, done_at=2) as where:
        yield where


def test_a_client_needs_two_lines(url: str) -> None:
    with CounterClient(url) as env, ew.make(CounterEnv, done_at=2) as near:
        began, began_near = env.reset(seed=7), near.reset(seed=7)
        results = [env.step(CounterAction(delta=1)) for _ in range(2)]
        near_results = [near.step(CounterAction(delta=1)) for _ in range(2)]

    for one, other in zip([began, *results], [began_near, *near_results], strict=True):
        assert type(one) is type(other)
        assert type(one.observation) is CounterObservation
        for name in ("observation", "reward", "terminated", "truncated", "info", "end", "needs"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.step_index == other.step_index
        assert one.episode_id is not None


def test_each_client_has_its_own_session(url: str) -> None:
    with CounterClient(url) as one, CounterClient(url) as other:
        one.reset()
        other.reset()
        one.step(CounterAction(delta=1))

        shown = other.step(CounterAction(delta=1)).observation

    assert shown.value == 1


class SeedStyle(ew.HTTPEnvClient[CounterAction, CounterObservation]):
    """A client as it was always written."""

    def _step_payload(self, action: CounterAction) -> dict[str, Any]:
        return {"delta": action.delta}

    def _parse_result(self, payload: dict[str, Any]) -> ew.StepResult[CounterObservation]:
        observation = CounterObservation(value=payload["observation"]["value"])
        return ew.StepResult(
            observation=observation, reward=payload.get("reward"), done=payload.get("done", False)
        )

    def _parse_state(self, payload: dict[str, Any]) -> ew.State:
        return ew.State(episode_id=payload.get("episode_id"), step_count=payload["step_count"])


def test_fields_omitted_by_a_parser_are_filled_in() -> None:
    with served(CounterEnv, done_at=9, max_episode_steps=2) as url, SeedStyle(url) as env:
        env.reset(seed=5, episode_id="mine")
        first = env.step(CounterAction(delta=1))
        last = env.step(CounterAction(delta=1))
        state = env.state()

    assert first.needs[0].observation is first.observation
    assert (last.terminated, last.truncated, last.done) == (False, True, True)
    assert last.end == ew.EpisodeEnd("truncated")
    assert last.requests == [last.end]
    assert (last.episode_id, last.step_index) == ("mine", 2)
    assert state == ew.State(episode_id="mine", step_count=2)


def test_a_client_without_classes_makes_equivalent_ones(url: str) -> None:
    with ew.HTTPEnvClient(url) as env:
        observation = env.reset().observation

    assert type(observation).__name__ == "CounterObservation"
    assert observation.value == 0


def test_a_state_comes_with_all_its_fields() -> None:
    with served(Tally) as url, TallyClient(url) as env:
        env.reset()
        env.step(TallyAction())
        state: Any = env.state()

    assert isinstance(state, ew.State)
    assert type(state).__name__ == TallyState.__name__
    assert (state.at, state.step_count) == (1, 1)


@dataclass
class Sight(ew.Observation):
    pixels: np.ndarray
    score: float = 0.0


class Seer(ew.Environment):
    def reset(self) -> Sight:
        return Sight(np.arange(6.0).reshape(2, 3))

    def step(self, action: int) -> Sight:
        return Sight(np.full((2, 3), float(action)), math.nan, reward=1.0)


class SeerClient(ew.HTTPEnvClient[Any, Sight]):
    def _step_payload(self, action: int) -> Any:
        return action


def test_arrays_come_back_as_arrays() -> None:
    with served(Seer) as url, SeerClient(url) as env:
        began = env.reset().observation
        shown = env.step(3).observation

    np.testing.assert_array_equal(began.pixels, np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(shown.pixels, np.full((2, 3), 3.0))


def test_a_failure_of_the_environment_gives_no_reward() -> None:
    script = [{"raise": "out of luck"}]
    with served(ScriptedEnvironment, script=script) as url, ew.HTTPEnvClient(url) as env:
        env.reset()

        result = env.step({})

    assert math.isnan(result.reward)
    assert (result.valid, result.end.blame) == (False, "environment")


def test_refusals_are_the_errors_that_they_are_in_this_process(url: str) -> None:
    with CounterClient(url) as env:
        with pytest.raises(ResetNeededError, match=r"[Rr]eset"):
            env.step(CounterAction(delta=1))
        env.reset()
        with pytest.raises(ActionError, match="Did you mean 'delta'"):
            env.step({"dleta": 1})
        with pytest.raises(OptionError, match="takes no options"):
            env.reset(options={"a": 1})

        assert env.step(CounterAction(delta=1)).observation.value == 1


def test_an_unsupported_seed_is_refused() -> None:
    with served(Seer) as url, SeerClient(url) as env, pytest.raises(SeedError):
        env.reset(seed=1)


def test_a_request_id_is_never_reused(url: str) -> None:
    with CounterClient(url) as env:
        env.reset()
        first = env.step(CounterAction(delta=1), request_id="one")

        again = env.step(CounterAction(delta=1), request_id="one")

        assert again == first
        assert env.state().step_count == 1


def test_a_lost_session_is_reported_and_never_replaced_silently() -> None:
    with served(Tally, session_ttl_s=0.2) as url, TallyClient(url) as env:
        env.reset()
        held = Tally.open
        wait_for(lambda: Tally.open < held)

        with pytest.raises(SessionGoneError):
            env.step(TallyAction())

        assert env.reset().observation.at == 0
        assert env.step(TallyAction()).observation.at == 1


def test_a_token_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(CounterEnv, token="secret") as url:
        with CounterClient(url, token="secret") as env:
            assert env.reset().observation.value == 0
        with CounterClient(url, token="wrong") as env, pytest.raises(AccessError):
            env.reset()
        monkeypatch.setenv("ENVWEAVE_TOKEN", "secret")
        with CounterClient(url) as env:
            assert env.reset().observation.value == 0


def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    with served(CounterEnv, uds=tmp_path / "s") as url, CounterClient(url) as env:
        env.reset()

        assert env.step(CounterAction(delta=1)).reward == 1.0


def test_close_frees_the_session_and_may_be_called_twice() -> None:
    with served(Tally, max_sessions=1) as url:
        env = TallyClient(url)
        env.reset()
        held = Tally.open

        env.close()
        env.close()

        assert Tally.open == held - 1
        with pytest.raises(ClosedError):
            env.reset()


def test_a_missing_server_is_reported_with_advice(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none"

    with CounterClient(nowhere) as env, pytest.raises(ConnectionLostError, match="envweave serve"):
        env.reset()


class Broken(ew.ContainerProvider):
    stopped = False

    def start_container(self, image: str, port: Any = None, env_vars: Any = None, **_: Any) -> str:
        return "http://127.0.0.1:9"

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        raise ew.errors.StartupError("it exited")

    def stop_container(self) -> None:
        self.stopped = True


def test_a_server_that_does_not_become_ready_is_stopped() -> None:
    provider = Broken()

    with pytest.raises(ew.errors.StartupError):
        CounterClient.from_docker_image("counter:latest", provider)

    assert provider.stopped
