"""`rollout(branch_at=…, width=…)`: episodes that continue from the very state of another one."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from environments.walks import (
    AskingWalk,
    CopyableLongWalk,
    CopyableUndeterministicWalk,
    LongWalk,
    UndeterministicWalk,
    UnrepeatableWalk,
)
from processes import descendants

import envweave as ew
from envweave.agents import ReplyAgent
from envweave.errors import OptionError, RolloutFailedError

SEED = 5


REMOTE = [pytest.param(name, marks=pytest.mark.slow) for name in ("process", "http")]


@pytest.fixture(params=["inproc", *REMOTE])  # the others start processes
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[LongWalk, CopyableLongWalk])
def walk(request: pytest.FixtureRequest) -> type[ew.Environment]:
    return request.param  # type: ignore[no-any-return]


def member(result: ew.StepResult[Any]) -> int:
    """Which one of its group an episode is: 0 for the trunk, then 1 and so on."""
    name = str(result.episode_id).split("-")[2]
    return 0 if name == "trunk" else 1 + int(name)


def differing(result: ew.StepResult[Any]) -> Any:
    """Act in each member of a group in another way."""
    if result.tool_calls:
        return ew.ToolResult(result.tool_calls[0].call_id, member(result))
    return 1 + member(result)


def content(episodes: list[ew.Episode]) -> list[Any]:
    return [
        (
            (one.group, one.member, one.task_id, one.seed, one.inherited),
            one.observations,
            [(step.action, step.reward, step.step_index, step.info) for step in one.steps],
            (one.reward, one.end, one.length, one.info, one.parent and one.parent.step),
        )
        for one in episodes
    ]


def by_hand(walk: type[ew.Environment], episode: ew.Episode) -> list[Any]:
    """Take all actions of an episode in one go; return its own results."""
    with ew.make(walk) as env:
        env.reset(task=episode.task_id, seed=episode.seed)
        for action in episode.inherited:
            env.step(action)
        results = [env.step(step.action) for step in episode.steps]
    return [(one.observation, one.reward, one.step_index) for one in results]


def test_each_continues_from_the_very_same_state(walk: Any, backend: str) -> None:
    with ew.pool(walk, size=3, backend=backend) as pool:
        run = ew.rollout(pool, differing, episodes=4, seed=SEED, branch_at=3, width=2)
        episodes = run.run()

    assert [(one.group, one.member) for one in episodes] == [
        (group, member) for group in range(4) for member in range(2)
    ]
    for one in episodes:
        shown = [(step.reward, step.step_index) for step in one.steps]
        seen = list(zip(one.observations[1:], shown, strict=True))
        assert [(o, *rest) for o, rest in seen] == by_hand(walk, one)
        assert (one.inherited, one.steps[0].step_index) == ([1, 1, 1], 4)
        assert (one.info["seed"], one.length) == (one.seed, one.steps[-1].step_index)
        assert one.reward == pytest.approx(sum(step.reward for step in one.steps))
    left, right = episodes[:2]
    assert left.parent == right.parent
    assert left.observations[0] == right.observations[0]
    assert left.episode_id != right.episode_id
    assert left.final_observation != right.final_observation


def test_the_same_seed_gives_the_same_however_many_run_at_once(walk: Any) -> None:
    played = []
    for size in (1, 5):
        with ew.pool(walk, size=size) as pool:
            run = ew.rollout(pool, differing, episodes=4, seed=SEED, branch_at=5, width=3)
            played.append(content(run.run()))

    assert played[0] == played[1]


def test_a_recording_has_the_same_episodes_and_their_trunks(
    walk: Any, backend: str, tmp_path: Path
) -> None:
    with ew.pool(walk, size=2, backend=backend, record=tmp_path) as pool:
        run = ew.rollout(pool, differing, episodes=2, seed=SEED, branch_at=4, width=2)
        episodes = run.run()
    recording = ew.load(tmp_path)

    loaded = [recording.episode(str(one.episode_id)) for one in episodes]
    trunks = [one for one in recording if one.parent is None]

    assert content(loaded) == content(episodes)
    assert [one.parent for one in loaded] == [one.parent for one in episodes]
    assert sorted(str(one.episode_id) for one in trunks) == sorted(
        {one.parent.episode for one in episodes if one.parent}
    )
    assert {(one.end.reason, one.length) for one in trunks} == {("truncated", 4)}
    assert ew.replay(tmp_path, against="inproc").is_equal
    assert not ew.replay(tmp_path, against="inproc").not_replayed


def test_an_episode_that_ends_before_is_delivered_as_it_is() -> None:
    with ew.pool(LongWalk, size=2) as pool:
        run = ew.rollout(pool, differing, episodes=8, seed=SEED, branch_at=13, width=2)
        episodes = run.run()

    short = [one for one in episodes if one.parent is None]
    forked = [one for one in episodes if one.parent is not None]
    assert short
    assert all(one.length <= 13 == len(one.inherited or range(13)) for one in short)
    assert all((one.member, len(one.steps), one.inherited) == (0, one.length, []) for one in short)
    assert {one.group for one in short}.isdisjoint({one.group for one in forked})
    assert len(forked) == 2 * (8 - len(short))


@pytest.mark.parametrize("walk", [AskingWalk])
def test_an_answer_is_among_the_inherited_actions(walk: Any) -> None:
    with ew.pool(walk, size=1) as pool:
        run = ew.rollout(pool, differing, episodes=1, seed=SEED, branch_at=2, width=2)
        episodes = run.run()

    for one in episodes:
        kinds = [type(action).__name__ for action in one.inherited]
        assert kinds == ["int", "ToolResult", "int"]
        assert isinstance(one.steps[0].action, ew.ToolResult)


def test_few_trunks_use_the_whole_pool() -> None:
    running: set[str] = set()
    most = 0

    async def agent(result: ew.StepResult[Any]) -> int:
        nonlocal most
        running.add(str(result.episode_id))
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(str(result.episode_id))
        return 1

    with ew.pool(LongWalk, size=4) as pool:
        episodes = ew.rollout(pool, agent, episodes=1, seed=SEED, branch_at=2, width=8).run()

    assert len(episodes) == 8
    assert most == 4


def test_a_stream_delivers_every_episode_once() -> None:
    with ew.pool(LongWalk, size=2) as pool:
        run = ew.rollout(pool, differing, episodes=5, seed=SEED, branch_at=3, width=4)
        ids = [one.episode_id for one in run]

    assert len(ids) == len(set(ids)) == 20


class Remembering:
    """Makes agents that remember what they did, and begin to differ after a fork."""

    def begin(self, env: Any, described: Any) -> tuple[Any, Any]:
        return env, _Memory()


class _Memory:
    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, result: ew.StepResult[Any]) -> ew.Decision:
        self.done.append(member(result))
        return ew.Decision(1, list(self.done))


def test_the_agent_of_each_episode_is_copied() -> None:
    with ew.pool(LongWalk, size=2) as pool:
        run = ew.rollout(pool, Remembering(), episodes=1, seed=SEED, branch_at=2, width=3)
        episodes = run.run()

    assert [one.steps[1].extra for one in episodes] == [[0, 0, i, i] for i in (1, 2, 3)]


class Closing:
    """Makes agents that cannot be copied."""

    def __init__(self, *, closes: bool) -> None:
        self.closes = closes

    def begin(self, env: Any, described: Any) -> tuple[Any, Any]:
        actions = iter([1] * 100)
        if self.closes:
            return env, lambda result: next(actions)
        agent = _Memory()
        agent.done = (one for one in ())  # type: ignore[assignment]
        agent.__class__ = type("Generating", (_Memory,), {"__call__": lambda self, result: 1})
        return env, agent


@pytest.mark.parametrize(
    ("closes", "why"), [(True, "a function with variables of its own"), (False, "__deepcopy__")]
)
def test_an_agent_that_cannot_be_copied_is_refused(closes: bool, why: str) -> None:
    with ew.pool(LongWalk, size=1) as pool:
        run = ew.rollout(pool, Closing(closes=closes), episodes=1, branch_at=2, width=2)

        with pytest.raises(OptionError, match=why):
            run.run()


class Talk(ew.Environment):
    """Counts letters, with answers in text."""

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.said: list[str] = []
        return "Say something.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        over = len(self.said) == 4
        return f"So far: {' '.join(self.said)}", float(len(action)), over, False, {}


def test_a_conversation_goes_on_in_each_by_itself(tmp_path: Path) -> None:
    def reply(turn: Any) -> str:
        return f"{member(turn.result)}" * (1 + len(turn.messages) // 2)

    with ew.pool(Talk, size=2, record=tmp_path) as pool:
        run = ew.rollout(pool, ReplyAgent(reply), episodes=1, branch_at=2, width=2)
        episodes = run.run()

    said = [[step.action for step in one.steps] for one in episodes]
    assert said == [["111", "1111"], ["222", "2222"]]
    assert [one.inherited for one in episodes] == [["0", "00"]] * 2
    final = [one.final_observation.messages[-1].content for one in episodes]
    assert final == ["So far: 0 00 111 1111", "So far: 0 00 222 2222"]
    recorded = ew.load(tmp_path).episode(str(episodes[1].episode_id))
    assert (recorded.inherited, recorded.reward) == (["0", "00"], episodes[1].reward)


@pytest.fixture
def others() -> set[int]:
    return {one.pid for one in descendants()}


@pytest.mark.slow  # starts worker processes, and kills one
@pytest.mark.parametrize("durable", [False, True])
def test_a_lost_continuation_is_played_again_or_brought_back(
    walk: Any, durable: bool, others: set[int]
) -> None:
    with ew.pool(walk, size=2) as pool:
        options: dict[str, Any] = {"episodes": 3, "seed": SEED, "branch_at": 3, "width": 3}
        expected = content(ew.rollout(pool, differing, **options).run())
    rng = random.Random(1)
    kills = iter([6, 30, 61])
    due = next(kills)
    steps = 0

    def agent(result: ew.StepResult[Any]) -> Any:
        nonlocal steps, due
        steps += 1
        if steps == due:
            due = next(kills, -1)
            ours = sorted(one.pid for one in descendants() if one.pid not in others)
            os.kill(rng.choice(ours), signal.SIGKILL)
        return differing(result)

    with ew.pool(walk, size=4, backend="process", workers=2, durable=durable) as pool:
        run = ew.rollout(pool, agent, **options)
        episodes = run.run()

    assert content(episodes) == expected
    assert (run.restored > 0) is durable
    assert bool(run.fault_counts) is not durable


def test_what_is_not_deterministic_is_continued_by_copies(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING), ew.pool(CopyableUndeterministicWalk, size=2) as pool:
        run = ew.rollout(pool, differing, episodes=3, seed=SEED, branch_at=3, width=2)
        episodes = run.run()

    assert [one.usable for one in episodes] == [True] * 6
    assert all(
        left.observations[0] == right.observations[0]
        for left, right in zip(episodes[::2], episodes[1::2], strict=True)
    )


@pytest.mark.slow  # starts worker processes
def test_what_is_not_deterministic_continues_in_its_own_worker() -> None:
    with ew.pool(CopyableUndeterministicWalk, size=4, backend="process", workers=4) as pool:
        run = ew.rollout(pool, differing, episodes=4, seed=SEED, branch_at=3, width=3)
        episodes = run.run()

    assert [one.usable for one in episodes] == [True] * 12
    assert run.fault_counts == {}


def test_what_cannot_be_copied_or_repeated_is_reported() -> None:
    with ew.pool(UndeterministicWalk, size=1) as pool:
        run = ew.rollout(pool, differing, episodes=1, seed=SEED, branch_at=3, width=2)

        with pytest.raises(RolloutFailedError, match="is not deterministic, as its author"):
            run.run()


def test_what_leads_elsewhere_is_reported_with_the_first_difference() -> None:
    with ew.pool(UnrepeatableWalk, size=1) as pool:
        run = ew.rollout(pool, differing, episodes=1, seed=SEED, branch_at=3, width=2)

        with pytest.raises(RolloutFailedError, match=r"first difference is at step 1, observ"):
            run.run()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"branch_at": 3}, "go together"),
        ({"width": 3}, "go together"),
        ({"branch_at": 0, "width": 3}, "branch_at must be"),
        ({"branch_at": 3, "width": 0}, "width must be"),
        ({"branch_at": 3, "width": 2, "group_size": 2}, "are a group. Leave group_size out"),
        ({"branch_at": 3, "width": 2, "max_steps": 3}, "No episode reaches branch_at=3"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Any, why: str) -> None:
    with ew.pool(LongWalk, size=1) as pool, pytest.raises(OptionError, match=why):
        ew.rollout(pool, differing, episodes=2, **options)
