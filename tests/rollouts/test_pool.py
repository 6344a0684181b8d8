from __future__ import annotations

import asyncio

import pytest
from environments.tasks import Walk, counted, forward

import envweave as ew
from envweave.errors import (
    BackendNotFoundError,
    CallOrderError,
    ClosedError,
    DefinitionError,
    EnvNotFoundError,
    OptionError,
)


def test_a_pool_shows_what_its_environments_are():
    with ew.pool("tictactoe-v0", size=3) as pool, ew.make("tictactoe-v0") as env:
        assert pool.size == 3
        assert pool.id == env.id
        assert pool.possible_agents == env.possible_agents
        assert pool.action_spec.json_schema() == env.action_spec.json_schema()
        assert pool.observation_spec.json_schema() == env.observation_spec.json_schema()
        assert pool.deterministic
        assert pool.tasks is None


def test_the_tasks_of_a_pool_are_gone_through_by_calling_them():
    with ew.pool(Walk, size=1) as pool:
        assert [task.id for task in pool.tasks("train")] == list("abcdef")


def test_keywords_go_to_the_constructor():
    with ew.pool("counter-v0", size=2, done_at=1) as pool:
        (episode,) = ew.rollout(pool, lambda result: {"delta": 1}, episodes=1).run()

    assert episode.length == 1


def test_a_limit_and_a_transform_hold_for_every_environment():
    def double(seen: ew.Observation) -> ew.Observation:
        seen.reward = None if seen.reward is None else 2 * seen.reward
        return seen

    with ew.pool("counter-v0", size=1, max_episode_steps=2, transform=double) as pool:
        (episode,) = ew.rollout(pool, lambda result: {"delta": 1}, episodes=1).run()

    assert (episode.length, episode.reward, episode.end.reason) == (2, 4.0, "truncated")


def test_an_id_is_looked_up_in_the_registry_that_is_given():
    registry = ew.Registry()
    ew.register("walk-v0", factory=Walk, registry=registry)

    with ew.pool("walk-v0", size=1, registry=registry) as pool:
        assert pool.id == "local://walk-v0"


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"env": "cuonter-v0"}, EnvNotFoundError, "Did you mean"),
        ({"backend": "inprocc"}, BackendNotFoundError, "Did you mean 'inproc'"),
        ({"size": 0}, OptionError, "size must be an integer >= 1, .* got 0"),
        ({"size": 2.5}, OptionError, "size must be an integer >= 1, .* got 2.5"),
        ({"dnoe_at": 3}, OptionError, "dnoe_at"),
        ({"timeout_s": 1.0}, OptionError, "timeout_s"),
        ({"env": Walk()}, OptionError, "One Walk object cannot be 2 environments"),
    ],
)
def test_invalid_options_are_refused_by_name(keywords, error, message):
    with pytest.raises(error, match=message):
        ew.pool(**{"env": "counter-v0", "size": 2, **keywords})


def test_a_factory_that_returns_the_same_object_twice_is_refused():
    only = Walk()

    with pytest.raises(OptionError, match="returned it twice"):
        ew.pool(lambda: only, size=2)


def test_an_environment_that_cannot_be_made_raises_once_and_the_others_are_closed():
    kind = counted()

    def third_fails() -> ew.Environment:
        if kind.log["made"] == 2:
            raise OSError("no port left")
        return kind()

    with pytest.raises(DefinitionError) as caught:
        ew.pool(third_fails, size=4)

    assert str(caught.value).count("no port left") == 1
    assert "third_fails" in str(caught.value)
    assert kind.log == {"made": 2, "closed": 2}


def test_leaving_the_block_closes_every_environment():
    kind = counted()

    async def scenario() -> None:
        async with ew.pool(kind, size=5):
            pass

    asyncio.run(scenario())

    assert kind.log == {"made": 5, "closed": 5}


def test_a_pool_may_be_closed_twice():
    kind = counted()

    async def scenario() -> None:
        pool = ew.pool(kind, size=2)
        await pool.close()
        await pool.close()

    asyncio.run(scenario())

    assert kind.log["closed"] == 2


def test_every_environment_is_closed_before_the_failure_of_one_is_raised():
    kind = counted()

    class Stuck(kind):
        async def close(self) -> None:
            await super().close()
            raise OSError("will not close")

    async def scenario() -> None:
        async with ew.pool(Stuck, size=3):
            pass

    with pytest.raises(OSError, match="will not close"):
        asyncio.run(scenario())

    assert kind.log["closed"] == 3


def test_a_closed_pool_is_refused():
    async def scenario() -> None:
        pool = ew.pool("counter-v0", size=1)
        await pool.close()
        with pytest.raises(ClosedError, match="is closed"):
            ew.rollout(pool, forward, episodes=1)
        with pytest.raises(ClosedError, match="is closed"):
            async with pool:
                pass

    asyncio.run(scenario())


def test_a_sync_block_in_a_running_loop_is_refused_with_the_async_form():
    async def scenario() -> None:
        pool = ew.pool("counter-v0", size=1)
        with pytest.raises(CallOrderError, match="async with"), pool:
            pass
        with pytest.raises(CallOrderError, match="await the rollout"):
            ew.rollout(pool, forward, episodes=1).run()
        await pool.close()

    asyncio.run(scenario())


def test_a_program_without_a_loop_needs_a_block():
    pool = ew.pool("counter-v0", size=1)

    with pytest.raises(CallOrderError, match="Write `with"):
        ew.rollout(pool, forward, episodes=1).run()

    with pool:
        pass


def test_a_pool_that_is_dropped_unclosed_warns():
    pool = ew.pool("counter-v0", size=3)

    with pytest.warns(ResourceWarning, match="3 environments of 'counter-v0'"):
        del pool


def test_closing_a_pool_ends_its_rollouts_with_the_reason():
    kind = counted()

    async def scenario() -> None:
        pool = ew.pool(kind, size=2)
        asked = asyncio.Event()

        async def thinks_for_ever(result: ew.StepResult) -> None:
            asked.set()
            await asyncio.Event().wait()

        waiting = asyncio.ensure_future(_collect(ew.rollout(pool, thinks_for_ever, episodes=4)))
        await asked.wait()
        await pool.close()

        with pytest.raises(ClosedError, match="closed while a rollout ran"):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())

    assert kind.log == {"made": 2, "closed": 2}


async def _collect(rollout: ew.Rollout) -> list[ew.Episode]:
    return await rollout


def test_a_backend_may_connect_one_environment_at_a_time(lossy):
    with ew.pool("counter-v0", size=3, backend="lossy") as pool:
        episodes = ew.rollout(pool, lambda result: {"delta": 3}, episodes=6).run()

    assert [episode.reward for episode in episodes] == [3.0] * 6


def test_connected_environments_are_closed_if_the_next_connection_fails(lossy):
    kind = counted()

    def third_fails() -> ew.Environment:
        if kind.log["made"] == 2:
            raise OSError("no port left")
        return kind()

    with pytest.raises(DefinitionError, match=r"third_fails.*no port left"):
        ew.pool(third_fails, size=3, backend="lossy")

    assert kind.log["closed"] == 2
