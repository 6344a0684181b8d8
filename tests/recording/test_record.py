"""What `record=` writes, `load` reads back: on every way to run, whatever happens in an episode."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import served

import envweave as ew
from envweave.codec.digest import digest
from envweave.errors import OptionError, RecordingError

SCRIPTED = "pkg://envweave.testing.scripted:ScriptedEnvironment"


def play(env: Any, actions: Any, **reset: Any) -> list[Any]:
    """Play one episode, and return its results."""
    results = [env.reset(**reset)]
    for action in actions:
        results.append(env.step(action))
        if results[-1].done:
            break
    return results


def recorded(folder: Path, env: Any, actions: Any, reset: Any = None, **options: Any) -> Any:
    """Play one episode that is recorded; return its results and its loaded episode."""
    with ew.make(env, record=folder, **options) as made:
        results = play(made, actions, **(reset or {"seed": 3}))
    recording = ew.load(folder)
    assert recording.problems == []
    return results, recording.episodes[0]


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"number": i, "text": str(i)} for i in range(count)]


def test_an_episode_is_loaded_as_it_was_played(tmp_path: Path) -> None:
    script = [{"reward": 1.0, "info": {"k": [1, None]}}, {"log": "hm", "reward": None}, {}]

    results, episode = recorded(tmp_path, SCRIPTED, numbered(3), script=script)

    assert [one.reward for one in episode.steps] == [one.reward for one in results[1:]]
    assert [one.info for one in episode.steps] == [one.info for one in results[1:]]
    assert [one.action for one in episode.steps] == numbered(3)
    assert [vars(one) for one in episode.observations] == [vars(r.observation) for r in results]
    assert episode.digests == [digest(one.observation) for one in results]
    assert episode.steps[1].events == tuple(results[2].events)
    assert (episode.seed, episode.task_id, episode.length) == (3, results[0].task_id, 3)
    assert episode.end == results[-1].end
    assert episode.reward == sum(one.reward or 0.0 for one in results[1:])


@pytest.mark.parametrize("reason", ["error", "lost"])
def test_a_failed_episode_is_recorded_with_its_owner_and_without_a_reward(
    tmp_path: Path, reason: str
) -> None:
    failure = {"raise": "boom"} if reason == "error" else {"end": ["lost", "infrastructure"]}

    results, episode = recorded(tmp_path, SCRIPTED, numbered(2), script=[{"reward": 5.0}, failure])

    assert not episode.usable
    assert math.isnan(episode.reward)
    assert math.isnan(episode.steps[-1].reward)
    assert episode.end == results[-1].end


def test_tool_calls_and_their_answers_are_recorded(tmp_path: Path) -> None:
    with ew.make(SCRIPTED, script=[{"tool": "search"}, {}], record=tmp_path) as env:
        env.reset(seed=0)
        asked = env.step({"text": "go"})
        env.step(ew.ToolResult(asked.tool_calls[0].call_id, {"found": 3}))
        env.step({"text": "on"})

    (episode,) = ew.load(tmp_path)

    assert [one.is_answer for one in episode.steps] == [False, True, False]
    assert episode.steps[1].action == ew.ToolResult(asked.tool_calls[0].call_id, {"found": 3})
    assert [one["role"] for one in episode.messages() if one["role"] != "user"] == [
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]


def test_several_agents_are_recorded_by_agent(tmp_path: Path) -> None:
    with ew.make("tictactoe-v0", record=tmp_path) as env:
        result = first = env.reset(seed=1)
        results = []
        while not result.done:
            cells = {
                need.agent_id: int(np.flatnonzero(need.action_mask)[0]) for need in result.needs
            }
            result = env.step({agent: {"cell": cell} for agent, cell in cells.items()})
            results.append(result)

    (episode,) = ew.load(tmp_path)

    assert [one.reward for one in episode.steps] == [one.reward for one in results]
    assert episode.reward == {"x": 1.0, "o": -1.0}
    assert same(episode.steps[0].action_mask, {n.agent_id: n.action_mask for n in first.needs})
    assert episode.digests[-1] == digest(results[-1].observation)
    assert episode.end == results[-1].end


def test_an_autoreset_begins_the_next_recorded_episode(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path, autoreset=True) as env:
        env.reset(seed=5)
        results = [env.step({"delta": 1}) for _ in range(7)]

    episodes = list(ew.load(tmp_path))

    assert [one.length for one in episodes] == [3, 3, 1]
    assert episodes[1].episode_id == results[2].ready.episode_id
    assert episodes[1].seed == results[2].ready.initial_info["seed"]
    assert [one.end.reason for one in episodes] == ["terminated", "terminated", "truncated"]


def test_an_episode_that_its_caller_gives_up_is_truncated(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=1)
        env.step({"delta": 1})
        env.reset(seed=2)

    given_up, begun = ew.load(tmp_path)

    assert (given_up.end.reason, given_up.reward, given_up.usable) == ("truncated", 1.0, True)
    assert (begun.end.reason, begun.length) == ("truncated", 0)


def test_a_refused_action_is_not_recorded(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=1)
        with pytest.raises(ew.errors.ActionError):
            env.step({"dleta": 1})
        env.step({"delta": 1})

    (episode,) = ew.load(tmp_path)

    assert [one.action for one in episode.steps] == [{"delta": 1}]


def test_what_a_caller_changes_later_is_not_what_was_recorded(tmp_path: Path) -> None:
    class Arrays(ew.Environment):
        def reset(self, *, seed: int | None = None) -> Any:
            return np.zeros(3), {}

        def step(self, action: np.ndarray) -> Any:
            return np.ones(3), 1.0, False, False, {"seen": action.copy()}

    with ew.make(Arrays, record=tmp_path) as env:
        env.reset()
        buffer = np.full(3, 7.0)
        result = env.step(buffer)
        buffer[:] = 0.0
        result.observation[:] = 9.0
        result.info["seen"][:] = 9.0

    (episode,) = ew.load(tmp_path)

    step = episode.steps[0]
    assert np.array_equal(step.action, [7.0, 7.0, 7.0])
    assert np.array_equal(episode.final_observation, [1.0, 1.0, 1.0])
    assert np.array_equal(step.info["seen"], [7.0, 7.0, 7.0])


@dataclass
class Held(ew.Observation):
    """Holds any value."""

    value: Any = None


class Holder(ew.Environment):
    """Shows the value of its action."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Held:
        return Held(value=(options or {}).get("value"))

    def step(self, action: dict[str, Any]) -> Held:
        return Held(value=action["value"], reward=0.0)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.binary()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Lu"]))
)
ARRAYS = st.builds(
    lambda dtype, shape: np.arange(math.prod(shape)).reshape(shape).astype(dtype),
    st.sampled_from(["f4", "f8", "i1", "u8", "?", "c16", "U3", "S2"]),
    st.lists(st.integers(0, 9), max_size=3),
)
KEYS = st.text() | st.sampled_from(["$value", "$float", "$dict", "digest"])
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(VALUES, min_size=1, max_size=4))
def test_any_value_comes_back_exactly(tmp_path_factory: Any, values: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("run")
    with ew.make(Holder, record=folder) as env:
        env.reset(options={"value": values[0]})
        seen = [env.step({"value": value}).observation.value for value in values]

    (episode,) = ew.load(folder)

    assert same([one.action["value"] for one in episode.steps], seen)
    assert same([one.value for one in episode.observations[1:]], seen)
    assert same(episode.options, {"value": seen[0]})


def test_large_values_are_stored_once_aside(tmp_path: Path) -> None:
    image = np.arange(84 * 84 * 4, dtype=np.uint8).reshape(84, 84, 4)
    text = "x" * 300_000

    with ew.make(Holder, record=tmp_path) as env:
        env.reset()
        for value in (image, image, text):
            env.step({"value": value})

    (episode,) = ew.load(tmp_path)
    assert len(list((tmp_path / "values").iterdir())) == 2
    assert sum(len(line.read()) for line in ew.load(tmp_path).summaries[0].lines) < 4000
    assert np.array_equal(episode.steps[1].action["value"], image)
    assert episode.final_observation.value == text


def test_a_missing_large_value_is_named(tmp_path: Path) -> None:
    with ew.make(Holder, record=tmp_path) as env:
        env.reset(options={"value": np.zeros(5000)})
    for path in (tmp_path / "values").iterdir():
        path.unlink()

    with pytest.raises(RecordingError, match="Copy a run with its folder 'values'"):
        list(ew.load(tmp_path))


MODES: dict[str, dict[str, Any]] = {
    "serial": {},
    "threads": {"mode": "threads"},
    "lent": {"copy": False},
    "process": {"backend": "process", "workers": 1},
}


def drive(folder: Path | None, send: bool = False, **options: Any) -> list[Any]:
    """Step a vector of LineWorld; return each row's results by episode."""
    rows: list[Any] = []
    with ew.make_vector(
        "lineworld-v0", num_envs=3, autoreset=True, record=folder, **options
    ) as venv:
        venv.reset(seed=4)
        rng = np.random.default_rng(0)
        for _ in range(40):
            actions = [venv.action_spec.sample(rng) for _ in range(3)]
            if send:
                venv.send(actions)
                batch = venv.drain()
            else:
                batch = venv.step(actions)
            rows += [(int(i), batch[k]) for k, i in enumerate(batch.ids)]
    return rows


@pytest.mark.parametrize(
    "mode",
    [
        *(pytest.param(mode, marks=[pytest.mark.slow] * (mode == "process")) for mode in MODES),
        "sent",
    ],
)
def test_the_rows_of_a_vector_are_recorded_as_episodes(tmp_path: Path, mode: str) -> None:
    rows = drive(tmp_path, send=mode == "sent", **MODES.get(mode, {}))

    recording = ew.load(tmp_path)
    assert recording.problems == []
    steps = {
        (one.row, one.id, step.step_index): (step.reward, after)
        for one in recording.summaries
        for episode in [recording.load(one)]
        for step, after in zip(episode.steps, episode.digests[1:], strict=True)
    }
    assert steps == {
        (i, row.episode_id, row.step_index): (row.reward, digest(row.observation))
        for i, row in rows
    }
    finished = [one for one in recording.summaries if one.end and one.end.reason == "terminated"]
    assert len(finished) == sum(row.end is not None for _, row in rows)


def test_a_gymnasium_vector_is_recorded(tmp_path: Path) -> None:
    with ew.make_vector("gym://CartPole-v1", num_envs=4, autoreset=True, record=tmp_path) as venv:
        venv.reset(seed=0)
        batches = [venv.step(np.zeros(4, np.int64)) for _ in range(12)]

    recording = ew.load(tmp_path)

    assert recording.problems == []
    assert sum(one.steps for one in recording.summaries) == 48
    first = recording.load(recording.summaries[0])
    row = recording.summaries[0].row
    assert np.array_equal(first.steps[1].observation, batches[0].successor[row])


def agent(result: Any) -> Any:
    return ew.Decision({"delta": 1}, {"logprob": -0.5, "tokens": [1, 2]})


def test_a_rollout_is_loaded_as_it_was_returned(tmp_path: Path) -> None:
    with ew.pool("counter-v0", size=2, record=tmp_path) as pool:
        played = ew.rollout(pool, agent, episodes=6, group_size=3, seed=1, max_steps=2).run()

    loaded = {one.episode_id: one for one in ew.load(tmp_path)}

    assert len(loaded) == 6
    for one in played:
        assert _comparable(loaded[one.episode_id]) == _comparable(one)


def _comparable(episode: ew.Episode) -> dict[str, Any]:
    plain = episode.to_dict()
    del plain["duration_s"]
    return plain


def test_one_rollout_of_a_pool_can_be_recorded(tmp_path: Path) -> None:
    async def run() -> None:
        async with ew.pool("counter-v0", size=2) as pool:
            await ew.rollout(pool, agent, episodes=2)
            await ew.rollout(pool, agent, episodes=3, record=tmp_path)

    asyncio.run(run())

    assert len(ew.load(tmp_path)) == 3


def test_attempts_that_were_lost_are_recorded_too(tmp_path: Path) -> None:
    script = [{"end": ["lost", "infrastructure"]}]
    with ew.pool(SCRIPTED, size=1, kwargs={"script": script}, record=tmp_path) as pool:
        run = ew.rollout(pool, lambda _: {"number": 1}, episodes=1, attempts=2, seed=0)
        with pytest.raises(ew.errors.RolloutFailedError):
            run.run()

    assert [(one.attempt, one.usable) for one in ew.load(tmp_path).summaries] == [
        (1, False),
        (2, False),
    ]


def test_an_async_environment_is_recorded(tmp_path: Path) -> None:
    async def run() -> None:
        async with ew.make_async("counter-v0", record=tmp_path) as env:
            result = await env.reset(seed=1)
            while not result.done:
                result = await env.step({"delta": 1})

    asyncio.run(run())

    (episode,) = ew.load(tmp_path)
    assert (episode.reward, episode.length) == (3.0, 3)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_server_records_every_session(tmp_path: Path, workers: int) -> None:
    with served("counter-v0", record=tmp_path, workers=workers) as url:
        with ew.make_vector(url, num_envs=3) as venv:
            venv.reset(seed=0)
            for _ in range(3):
                venv.step([{"delta": 1}] * 3)
        with ew.make(url) as env:
            env.reset(seed=9)
            env.step({"delta": 1})

    recording = ew.load(tmp_path)
    assert recording.problems == []
    assert sorted((one.steps, one.reward) for one in recording.summaries) == [
        (1, 1.0), (3, 3.0), (3, 3.0), (3, 3.0),
    ]  # fmt: skip
    assert recording.runs[0].backend == "server"


def test_several_writers_may_share_a_directory(tmp_path: Path) -> None:
    with (
        ew.make("counter-v0", record=tmp_path) as one,
        ew.make("counter-v0", record=tmp_path) as two,
    ):
        play(one, [{"delta": 1}] * 3, seed=1)
        play(two, [{"delta": 1}] * 3, seed=2)

    recording = ew.load(tmp_path)

    assert len(recording.runs) == 2
    assert sorted(one.seed for one in recording) == [1, 2]


def test_a_recording_that_grows_is_refreshed(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        play(env, [{"delta": 1}] * 3, seed=1)
    recording = ew.load(tmp_path)
    with ew.make("counter-v0", record=tmp_path) as env:
        play(env, [{"delta": 1}] * 3, seed=2)

    recording.refresh()

    assert [one.seed for one in recording] == [1, 2]


def test_a_point_of_an_episode_has_what_leads_there(tmp_path: Path) -> None:
    results, episode = recorded(
        tmp_path, SCRIPTED, numbered(3), reset={"seed": 3, "task": "second"}
    )

    point = episode.at(2)

    assert (point.seed, point.task, len(point.actions)) == (3, "second", 2)
    assert point.digests == [digest(one.observation) for one in results[:3]]
    with pytest.raises(OptionError, match="from 0 to 3"):
        episode.at(4)


def test_what_cannot_be_recorded_or_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="record must be the path"):
        ew.make("counter-v0", record=True)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="Nothing can be recorded into"):
        ew.make("counter-v0", record=tmp_path / "file")
    with pytest.raises(RecordingError, match="has no recording"):
        ew.load(tmp_path)


@dataclass
class Secretive(ew.Environment):
    """Takes a key."""

    api_key: str = ""
    level: int = 1
    transform: Any = field(default=None, repr=False)

    def reset(self, *, seed: int | None = None) -> str:
        return "hello"

    def step(self, action: str) -> Any:
        return action, 1.0, True, False, {}


def test_a_keyword_that_looks_like_a_secret_is_not_recorded(tmp_path: Path) -> None:
    with ew.make(Secretive, record=tmp_path, api_key="hunter2", level=3) as env:
        play(env, ["hi"])

    (run,) = ew.load(tmp_path).runs

    assert "hunter2" not in run.path.read_text(encoding="utf-8")
    assert run.definition is not None
    assert run.definition["kwargs"] == {"level": 3}
    assert run.definition["withheld"] == ["api_key"]


def test_an_episode_of_text_is_a_chat(tmp_path: Path) -> None:
    _, episode = recorded(tmp_path, Secretive, ["hi there"], reset={})

    assert episode.messages() == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi there"},
        {"role": "user", "content": "hi there"},
    ]


@pytest.mark.slow  # 100,000 steps
def test_a_hundred_thousand_steps_are_loaded_lazily(tmp_path: Path) -> None:
    with ew.make_vector("counter-v0", num_envs=100, autoreset=True, record=tmp_path) as venv:
        venv.reset(seed=0)
        for _ in range(1000):
            venv.step([{"delta": 1}] * 100)

    recording = ew.load(tmp_path)

    assert sum(one.steps for one in recording.summaries) == 100_000
    assert recording.episodes[20_000].reward == 3.0


def test_agents_that_leave_are_recorded(tmp_path: Path) -> None:
    with ew.make("harvest-v0", record=tmp_path) as env:
        result = env.reset(seed=2)
        results = [result]
        rng = np.random.default_rng(0)
        while not result.done:
            result = env.step(
                {one.agent_id: env.action_spec[one.agent_id].sample(rng) for one in result.needs}
            )
            results.append(result)

    (episode,) = ew.load(tmp_path)

    assert [one.reward for one in episode.steps] == [one.reward for one in results[1:]]
    assert [len(one.events) for one in episode.steps] == [len(one.events) for one in results[1:]]
