"""A failed environment is replaced, and the episodes continue."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import envweave as ew
from envweave.errors import ActionError, DefinitionError, ResetFailedError, SeedError
from envweave.session import Session, SyncDriver, episode_seed
from envweave.testing import ScriptedAgents


class Frail(ew.Environment):
    """Does what its action says; knows its number, and who was closed."""

    made: ClassVar[int] = 0
    closed: ClassVar[list[int]] = []
    fail_seeds: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self.number = Frail.made
        Frail.made += 1

    def reset(self, *, seed: int | None = None) -> Any:
        if seed in self.fail_seeds:
            raise OSError(f"no episode with seed {seed}")
        return self.number, {}

    def step(self, action: str) -> Any:
        match action:
            case "raise":
                raise OSError("no more")
            case "nonsense":
                return "nonsense"
            case "tool":
                self.emit(ew.ToolCallRequest("call", "ask"))
            case "agent" | "environment" | "infrastructure":
                self.emit(ew.EpisodeEnd("lost", action))
        return self.number, 1.0, action == "end", action == "cut", {}

    def answer(self, result: ew.ToolResult) -> Any:
        return self.step(result.value)

    @property
    def state(self) -> ew.State:
        return ew.State(step_count=100 + self.number)

    def close(self) -> Any:
        Frail.closed.append(self.number)


class AsyncFrail(Frail):
    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)

    async def step(self, action: str) -> Any:  # type: ignore[override]
        return super().step(action)

    async def answer(self, result: ew.ToolResult) -> Any:  # type: ignore[override]
        return Frail.step(self, result.value)

    async def close(self) -> Any:
        super().close()


class Awaited:
    """An `AsyncEnv` for a sync caller who has a loop of their own."""

    def __init__(self, env: ew.AsyncEnv, runner: asyncio.Runner) -> None:
        self._env, self._runner = env, runner

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **keywords: Any) -> Any:
            return await getattr(self._env, name)(*args, **keywords)

        return lambda *args, **keywords: self._runner.run(call(*args, **keywords))


@pytest.fixture(params=["sync", "async", "make_async"])
def maker(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The kind of `Frail`, and `make` for it."""
    Frail.made, Frail.closed, Frail.fail_seeds = 0, [], set()
    kind = Frail if request.param == "sync" else AsyncFrail
    if request.param != "make_async":
        yield kind, ew.make
        return
    with asyncio.Runner() as runner:
        yield kind, lambda *args, **options: Awaited(ew.make_async(*args, **options), runner)


@pytest.mark.parametrize("fault", ["raise", "nonsense", "environment", "infrastructure"])
def test_a_failed_environment_is_closed_and_replaced_before_the_next_reset(
    maker: Any, fault: str
) -> None:
    kind, make = maker
    env = make(kind)
    env.reset()

    result = env.step(fault)
    before = list(Frail.closed)
    again = env.reset()

    assert (result.valid, before, Frail.closed) == (False, [], [0])
    assert again.observation == 1
    assert env.step("go").observation == 1
    env.close()
    assert Frail.closed == [0, 1]


def test_a_failure_in_an_answer_costs_the_environment_too(maker: Any) -> None:
    kind, make = maker
    env = make(kind)
    env.reset()
    env.step("tool")

    result = env.step(ew.ToolResult("call", "raise"))

    assert (result.valid, env.reset().observation) == (False, 1)
    env.close()


@pytest.mark.parametrize("harmless", ["agent", "end", "cut", "refused"])
def test_a_failure_of_the_caller_replaces_nothing(maker: Any, harmless: str) -> None:
    kind, make = maker
    env = make(kind)
    env.reset(seed=1)

    if harmless == "refused":
        with pytest.raises(ActionError):
            env.step(5)
        with pytest.raises(SeedError):
            env.reset(seed=-1)
    else:
        assert env.step(harmless).valid
    env.reset()

    assert (Frail.made, Frail.closed) == (1, [])
    env.close()


def test_with_autoreset_the_replacements_first_episode_comes_with_the_failure(maker: Any) -> None:
    kind, make = maker
    env = make(kind, autoreset=True)
    env.reset()

    result = env.step("raise")

    assert (result.observation, result.current) == (0, 1)
    assert isinstance(result.ready, ew.AutoResetReady)
    assert env.state().step_count == 101
    assert env.step("go").observation == 1
    env.close()


def test_seeds_and_episode_ids_continue_after_a_failure(maker: Any) -> None:
    kind, make = maker
    env = make(kind, autoreset=True)
    first = env.reset(seed=7)
    faults = ["raise", "end", "raise", "raise", "cut"]

    starts = [env.step(fault).ready for fault in faults]

    assert [ready.initial_info["seed"] for ready in starts] == [
        episode_seed(7, k) for k in range(1, 6)
    ]
    prefix = first.episode_id.removesuffix("-0")
    assert [ready.episode_id for ready in starts] == [f"{prefix}-{k}" for k in range(1, 6)]
    assert Frail.made == 4
    env.close()


def test_a_reset_that_fails_runs_once_and_the_next_is_anothers(maker: Any) -> None:
    kind, make = maker
    env = make(kind)
    Frail.fail_seeds = {3}

    with pytest.raises(ResetFailedError, match="no episode with seed 3"):
        env.reset(seed=3)

    assert Frail.made == 1
    result = env.reset()
    assert (result.observation, result.info["seed"]) == (1, episode_seed(3, 1))
    env.close()


def test_an_autoreset_that_fails_costs_the_environment_too(maker: Any) -> None:
    kind, make = maker
    env = make(kind, autoreset=True)
    env.reset(seed=3)
    Frail.fail_seeds = {episode_seed(3, 1)}

    result = env.step("end")

    assert "no episode" in result.info["reset_error"]
    assert env.reset().observation == 1
    env.close()


def test_a_factory_that_fails_is_called_again_at_the_next_reset(maker: Any) -> None:
    kind, make = maker
    left = iter([True, False, False, True])

    def factory() -> Any:
        if next(left):
            return kind()
        raise OSError("out of machines")

    env = make(factory, autoreset=True)
    env.reset(seed=7)

    result = env.step("raise")
    with pytest.raises(ResetFailedError, match="out of machines"):
        env.reset()
    third = env.reset()

    assert (result.ready, result.end.reason) == (None, "error")
    assert "out of machines" in result.info["reset_error"]
    assert (third.observation, third.info["seed"]) == (1, episode_seed(7, 3))
    assert Frail.closed == [0], "the one that failed was closed once"
    env.close()


def test_an_environment_is_not_closed_twice_if_its_replacement_fails(maker: Any) -> None:
    kind, make = maker
    made = iter([kind])
    env = make(lambda: next(made)())
    env.reset()
    env.step("raise")

    with pytest.raises(ResetFailedError, match="StopIteration"):
        env.reset()
    env.close()

    assert Frail.closed == [0]


def test_a_ready_made_environment_is_not_replaced(maker: Any) -> None:
    kind, make = maker
    env = make(kind())
    env.reset()
    env.step("raise")

    assert (env.reset().observation, Frail.closed) == (0, [])
    env.close()


def test_a_failing_close_of_a_failed_environment_is_logged(
    maker: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jammed(self: Any) -> None:
        raise OSError("jammed")

    kind, make = maker
    env = make(kind)
    env.reset()
    env.step("raise")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "envweave"):
        patch.setattr(Frail, "close", jammed)
        again = env.reset()

    assert again.observation == 1
    assert "jammed" in caplog.text
    env.close()


def test_a_factory_that_returns_a_failed_environment_is_refused(maker: Any) -> None:
    kind, make = maker
    only = kind()
    env = make(lambda: only)
    env.reset()
    env.step("raise")

    with pytest.raises(ResetFailedError, match=r"made before\. Let it make a new one each time"):
        env.reset()
    env.close()


def test_a_replacement_of_another_kind_is_refused_and_closed(maker: Any) -> None:
    class Seedless(Frail):
        def reset(self) -> Any:  # type: ignore[override]
            return 0, {}

    kind, make = maker
    kinds = iter([kind, Seedless])
    env = make(lambda: next(kinds)())
    env.reset(seed=1)
    env.step("raise")

    with pytest.raises(ResetFailedError, match=r"made a Seedless to replace a failed \w*Frail"):
        env.reset()

    assert Frail.closed == [0, 1]
    env.close()


def test_several_agents_continue_with_a_replacement() -> None:
    entries = [{"rewards": {"a": 1.0}, "act": ["b"]}, {"raise": "no more"}]
    env = ew.make(ScriptedAgents, script=entries, autoreset=True)
    first = env.reset(seed=5)
    env.step({"a": {}, "b": {}})

    result = env.step({"b": {}})

    assert (result.end.reason, result.valid) == ("error", False)
    assert {need.agent_id for need in result.needs} == {"a", "b"} == set(first.observation)
    assert result.ready.initial_info["seed"] == episode_seed(5, 1)
    assert [need.agent_id for need in env.step({"a": {}, "b": {}}).needs] == ["b"]
    env.close()


def test_a_replacement_draws_from_tasks_of_its_own() -> None:
    class OwnTasks(Frail):
        def __init__(self) -> None:
            super().__init__()
            self.tasks = ew.Tasks({"train": [ew.Task(f"of-{self.number}")]})

        def reset(self, *, task: ew.Task) -> Any:  # type: ignore[override]
            return task.id, {}

    Frail.made = 0
    with ew.make(OwnTasks, autoreset=True) as env:
        drawn = [env.reset().task_id, *(env.step(act).ready.task_id for act in ("raise", "end"))]

    assert drawn == ["of-0", "of-0", "of-1"]


def test_a_failed_task_draw_is_not_a_reset_failure_and_replaces_nothing() -> None:
    class NoTasks(Frail):
        tasks = ew.Tasks({"train": [], "test": [ew.Task("t", "test")]})

        def reset(self, *, task: ew.Task) -> Any:  # type: ignore[override]
            return self.number, {}

    Frail.made = 0
    with ew.make(NoTasks, autoreset=True) as env:
        env.reset(task="t")

        assert "is empty" in env.step("end").info["reset_error"]

        assert env.reset(task="t").observation == 0


def test_another_session_can_resume_from_a_position() -> None:
    def play(session: Session, episodes: int) -> list[Any]:
        return [SyncDriver(session).reset() for _ in range(episodes)]

    def summary(starts: list[Any]) -> list[Any]:
        return [(start.episode_id, start.info["seed"]) for start in starts]

    whole, before, after = Session(Frail()), Session(Frail()), Session(Frail())
    SyncDriver(whole).reset(seed=7)
    before.resume_from(whole.position)
    play(before, 2)

    after.resume_from(pickle.loads(pickle.dumps(before.position)))

    assert summary(play(after, 3)) == summary(play(whole, 5))[2:]


def test_an_error_while_making_the_first_one_is_a_definition_error() -> None:
    def factory() -> Any:
        raise OSError("out of machines")

    makers: list[Callable[..., Any]] = [ew.make, ew.make_async]
    for make in makers:
        with pytest.raises(DefinitionError, match="out of machines"):
            make(factory)
