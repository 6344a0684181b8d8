"""An action that the author's `step` refuses: the caller gets an error, the episode continues."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from environments.edge_cases import (
    AsyncRefusing,
    PickyError,
    Refusing,
    RefusingAgents,
    RefusingInGymnasiumsWay,
    RefusingTool,
)
from servers import client_of, error_in, served
from websockets.sync.client import connect

import envweave as ew
from envweave.codec import to_plain
from envweave.errors import ActionError
from envweave.types import LogEvent, NeedAction, ToolCallRequest, ToolResult


@pytest.mark.parametrize("env_class", [Refusing, AsyncRefusing])
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_a_refused_action_leaves_the_episode_where_it_was(backend: str, env_class: Any) -> None:
    with ew.make(env_class, backend=backend) as env:
        env.reset(seed=1)
        before = env.step({"square": 1})

        with pytest.raises(ActionError, match=r"^square 13 is taken$"):
            env.step({"square": 13})

        after = env.step({"square": 2})
        assert (before.step_index, after.step_index) == (1, 2)
        assert after.episode_id == before.episode_id
        assert after.observation.moves == 2
        assert env.state().step_count == 2


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_refused_action_leaves_an_episode_at_a_server_where_it_was(encoding: str) -> None:
    with served(Refusing) as url, ew.make(url, encoding=encoding) as env:
        env.reset(seed=1)

        with pytest.raises(ActionError, match=r"^square 13 is taken$"):
            env.step({"square": 13})

        assert env.step({"square": 2}).step_index == 1


def test_a_refused_action_over_plain_http_is_a_422_and_the_session_continues() -> None:
    with client_of(Refusing) as client:
        client.post("/reset")

        refused = client.post("/step", json={"action": {"square": 13}})

        assert error_in(refused) == "422 action_refused"
        assert refused.json()["error"]["message"] == "square 13 is taken"
        assert client.post("/step", json={"action": {"square": 2}}).json()["step_index"] == 1


def test_a_refused_action_in_openenvs_dialect_is_a_validation_error() -> None:
    with served(Refusing) as url, connect(f"{url.replace('http', 'ws')}/ws") as socket:

        def ask(kind: str, **data: Any) -> Any:
            socket.send(json.dumps({"type": kind, "data": data}))
            return json.loads(socket.recv(20))

        ask("reset")
        refused = ask("step", square=13)
        after = ask("step", square=2)

    assert (refused["type"], refused["data"]["code"]) == ("error", "VALIDATION_ERROR")
    assert "square 13 is taken" in refused["data"]["message"]
    assert after["data"]["step_index"] == 1


def test_a_refused_action_in_a_servers_worker_process_leaves_the_episode_alone() -> None:
    with served(Refusing, workers=1) as url, ew.make(url) as env:
        env.reset()

        with pytest.raises(ActionError, match=r"^square 13 is taken$"):
            env.step({"square": 13})

        assert env.step({"square": 2}).step_index == 1


def test_an_async_caller_gets_the_error_of_a_refused_action() -> None:
    async def play() -> tuple[str, int]:
        async with ew.make_async(AsyncRefusing, timeout_s=30.0) as env:
            await env.reset()
            with pytest.raises(ActionError) as refusal:
                await env.step({"square": 13})
            return str(refusal.value), (await env.step({"square": 2})).step_index

    assert asyncio.run(play()) == ("square 13 is taken", 1)


@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_an_authors_own_kind_of_refusal_arrives_as_an_action_error(backend: str) -> None:
    with ew.make(Refusing, backend=backend, error=PickyError) as env:
        env.reset()

        with pytest.raises(ActionError) as refusal:
            env.step({"square": 13})

        assert type(refusal.value) is ActionError
        assert str(refusal.value) == "square 13 is taken"


def test_the_traceback_of_a_refusal_leads_to_the_authors_line() -> None:
    with ew.make(Refusing, error=PickyError) as env:
        env.reset()

        with pytest.raises(ActionError) as refusal:
            env.step({"square": 13})

        assert isinstance(refusal.value.__cause__, PickyError)


def test_logs_of_a_refused_step_come_with_the_next_result() -> None:
    with ew.make(Refusing, says=True) as env:
        env.reset()
        with pytest.raises(ActionError):
            env.step({"square": 13})

        result = env.step({"square": 2})

        assert result.events == [LogEvent("looking at 13"), LogEvent("looking at 2")]
        assert result.end is None
        assert result.tool_calls == []


def test_a_refused_answer_leaves_its_tool_call_open() -> None:
    with ew.make(RefusingTool) as env:
        env.reset()
        call = env.step({"square": 1}).tool_calls[0]

        with pytest.raises(ActionError, match="no such page"):
            env.step(ToolResult(call.call_id, "13"))

        answered = env.step(ToolResult(call.call_id, "2"))
        assert (answered.step_index, answered.tool_calls) == (1, [])


def test_agents_must_act_again_after_a_refused_action() -> None:
    with ew.make(RefusingAgents) as env:
        env.reset()
        before = env.step({"a": 1, "b": 2})

        with pytest.raises(ActionError, match="13"):
            env.step({"a": 13, "b": 1})

        after = env.step({"a": 1, "b": 1})
        assert after.step_index == before.step_index + 1
        assert after.needs[0].reward == 1.0


@pytest.mark.parametrize(
    "wrap", [lambda env: ew.TimeLimit(env, 2), ew.EpisodeStatistics], ids=["limit", "statistics"]
)
def test_a_wrapper_does_not_count_a_refused_action(wrap: Any) -> None:
    with ew.make(lambda: wrap(Refusing(last=2))) as env:
        env.reset()
        env.step({"square": 1})
        for _ in range(3):
            with pytest.raises(ActionError):
                env.step({"square": 13})

        result = env.step({"square": 2})

        assert result.done
        assert result.info.get("episode", {"length": 2})["length"] == 2


def test_a_transform_sees_nothing_of_a_refused_action() -> None:
    seen: list[int] = []

    def note(observation: Any) -> Any:
        seen.append(observation.moves)
        return observation

    with ew.make(Refusing, transform=note) as env:
        env.reset()
        with pytest.raises(ActionError):
            env.step({"square": 13})
        env.step({"square": 2})

    assert seen == [0, 1]


def test_an_environment_that_is_used_directly_refuses_as_well() -> None:
    env = ew.session.DirectEnvironment(Refusing())
    env.reset()

    with pytest.raises(ActionError):
        env.step({"square": 13})

    assert env.step({"square": 2}).moves == 1
    env.close()


# In a vector


def _vectors() -> list[Any]:
    return [
        pytest.param(Refusing, {"mode": "serial"}, id="serial"),
        pytest.param(RefusingInGymnasiumsWay, {"mode": "serial"}, id="serial-tuples"),
        pytest.param(Refusing, {"mode": "threads"}, id="threads"),
        pytest.param(AsyncRefusing, {"mode": "async"}, id="async"),
        pytest.param(Refusing, {"backend": "process", "workers": 2}, id="process"),
        pytest.param(RefusingInGymnasiumsWay, {"backend": "process"}, id="process-tuples"),
        pytest.param(Refusing, {"backend": "http"}, id="remote", marks=pytest.mark.slow),
    ]


@pytest.mark.parametrize(("env_class", "options"), _vectors())
def test_a_refused_row_stands_still_while_the_others_step(env_class: Any, options: Any) -> None:
    with ew.make_vector(env_class, num_envs=3, **options) as venv:
        venv.reset(seed=0)
        before = venv.step([{"square": 1}] * 3)

        batch = venv.step([{"square": 2}, {"square": 13}, {"square": 2}])

        assert batch.refused.tolist() == [False, True, False]
        assert batch.valid.tolist() == batch.bootstrap.tolist() == [True, False, True]
        assert batch.reward.tolist() == [2.0, pytest.approx(np.nan, nan_ok=True), 2.0]
        assert batch.step_index.tolist() == [2, 1, 2]
        assert batch.done.tolist() == [False] * 3
        assert batch.episode_id == before.episode_id
        row = batch[1]
        assert row.refused == "square 13 is taken"
        assert row.observation == before[1].observation
        mask = before[1].needs[0].action_mask
        assert row.requests == [NeedAction(before[1].observation, mask)]
        after = venv.step([{"square": 3}] * 3)
        assert after.step_index.tolist() == [3, 2, 3]
        assert after.refused.tolist() == [False] * 3
        assert after.reward.tolist() == [3.0, 2.0, 3.0]


@pytest.mark.parametrize(("env_class", "options"), _vectors())
def test_a_row_may_be_refused_again_and_again(env_class: Any, options: Any) -> None:
    with ew.make_vector(env_class, num_envs=2, autoreset=True, last=2, **options) as venv:
        first = venv.reset(seed=0)
        for _ in range(3):
            batch = venv.step([{"square": 13}, {"square": 1}])

            assert batch[0].refused == "square 13 is taken"
            assert batch[0].step_index == 0
            assert batch[0].episode_id == first.episode_id[0]
            assert batch[0].needs[0].action_mask == [True, False]
        ended = [venv.step([{"square": 1}] * 2) for _ in range(2)][-1]
        assert ended.done.tolist() == [True, False]


@pytest.mark.parametrize(("env_class", "options"), _vectors())
def test_a_refused_row_is_received_like_any_other(env_class: Any, options: Any) -> None:
    with ew.make_vector(env_class, num_envs=2, **options) as venv:
        venv.reset(seed=0)
        venv.send([{"square": 13}, {"square": 1}])

        batch = venv.drain()

        refused = dict(zip(batch.ids.tolist(), batch.refused.tolist(), strict=True))
        assert refused == {0: True, 1: False}
        assert venv.in_flight == 0
        assert venv.step([{"square": 1}] * 2).step_index.tolist() == [1, 2]


@pytest.mark.parametrize("options", [{}, {"mode": "threads"}, {"backend": "process"}])
def test_a_refused_row_of_agents_asks_the_same_agents_again(options: Any) -> None:
    with ew.make_vector(RefusingAgents, num_envs=2, **options) as venv:
        venv.reset(seed=0)
        before = venv.step([{"a": 1, "b": 2}] * 2)

        batch = venv.step([{"a": 1, "b": 1}, {"a": 13, "b": 1}])

        assert batch.refused.tolist() == [False, True]
        assert np.isnan(batch.reward[1]).all()
        assert not batch.settled[1].any()
        assert batch.to_act.tolist() == [[True, True], [True, True]]
        assert batch[1].observation == before[1].observation
        assert venv.step([{"a": 1, "b": 1}] * 2).step_index.tolist() == [3, 2]


def test_agents_at_a_server_must_act_again_as_in_process() -> None:
    with (
        served(RefusingAgents) as url,
        ew.make_vector(url, num_envs=2) as far,
        ew.make_vector(RefusingAgents, num_envs=2) as near,
    ):
        far.reset(seed=0)
        near.reset(seed=0)
        for squares in ([1, 1], [13, 2], [2, 13], [1, 1]):
            actions = [{"a": square, "b": 1} for square in squares]

            one, other = far.step(actions), near.step(actions)

            assert one.refused.tolist() == other.refused.tolist()
            for left, right in zip(one, other, strict=True):
                assert to_plain(left.requests) == to_plain(right.requests)
                assert (left.reward, left.step_index) == (right.reward, right.step_index)


def test_a_refused_answer_in_a_vector_leaves_its_tool_call_open() -> None:
    with ew.make_vector(RefusingTool, num_envs=2) as venv:
        venv.reset()
        asked = venv.step([{"square": 1}] * 2)
        calls = [row.tool_calls[0] for row in asked]

        batch = venv.step([ToolResult(calls[0].call_id, "13"), ToolResult(calls[1].call_id, "2")])

        assert batch.refused.tolist() == [True, False]
        assert [type(one) for one in batch[0].requests] == [ToolCallRequest]
        again = venv.step([ToolResult(calls[0].call_id, "2"), {"square": 2}])
        assert again.refused.tolist() == [False, False]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_vector_at_a_server_keeps_its_refused_rows(encoding: str) -> None:
    with (
        served(Refusing) as url,
        ew.make_vector(url, num_envs=3, encoding=encoding) as far,
        ew.make_vector(Refusing, num_envs=3) as near,
    ):
        far.reset(seed=0)
        near.reset(seed=0)
        for squares in ([1, 1, 1], [13, 2, 13], [2, 13, 2]):
            actions = [{"square": square} for square in squares]

            one, other = far.step(actions), near.step(actions)

            assert one.refused.tolist() == other.refused.tolist()
            for left, right in zip(one, other, strict=True):
                assert to_plain(left.requests) == to_plain(right.requests)
                assert left.step_index == right.step_index
