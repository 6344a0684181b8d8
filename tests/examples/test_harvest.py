from __future__ import annotations

import pytest

import envweave as ew

FARMERS = ("farmer_0", "farmer_1", "farmer_2", "farmer_3")


def live(env, seed, take):
    """Run an episode in which an agent takes what `take(agent_id)` says; return its results."""
    results = [env.reset(seed=seed)]
    while not results[-1].done:
        actions = {need.agent_id: {"take": take(need.agent_id)} for need in results[-1].needs}
        results.append(env.step(actions))
    return results


def earned(results):
    totals = dict.fromkeys(FARMERS, 0.0)
    for result in results[1:]:
        for agent, reward in result.reward.items():
            totals[agent] += reward
    return totals


def carried(results):
    """What the requests of an episode carried to each agent."""
    totals = dict.fromkeys(FARMERS, 0.0)
    for result in results:
        for request in result.requests:
            if isinstance(request, ew.NeedAction | ew.AgentEnd):
                totals[request.agent_id] += request.reward or 0.0
            elif isinstance(request, ew.EpisodeEnd):
                for agent, reward in request.rewards.items():
                    totals[agent] += reward or 0.0
    return totals


def one_fasts(agent_id):
    return 0 if agent_id == "farmer_2" else 2


@pytest.fixture
def env():
    with ew.make("harvest-v0") as made:
        yield made


def test_moderate_harvesting_lasts_until_the_limit_truncates(env):
    last = live(env, 0, lambda _: 2)[-1]

    assert (last.end.reason, last.step_index) == ("truncated", 50)
    assert last.truncated == dict.fromkeys(FARMERS, True)
    assert last.terminated == dict.fromkeys(FARMERS, False)
    assert last.info["farmer_0"]["metrics"] == {"harvested": 100.0, "rounds": 50.0, "starved": 0.0}


def test_greedy_harvesting_ruins_the_stock_and_terminates(env):
    last = live(env, 0, lambda _: 5)[-1]

    assert last.end.reason == "terminated"
    assert last.step_index < 10
    assert env.state().stock < 2


def test_restraint_is_better_for_all_and_greed_better_for_one():
    def greedy(agent_id):
        return 5 if agent_id == "farmer_0" else 2

    with ew.make("harvest-v0") as env:
        restrained, ruinous, mixed = (
            earned(live(env, 0, take)) for take in (lambda _: 2, lambda _: 5, greedy)
        )

    assert ruinous["farmer_0"] < restrained["farmer_0"] < mixed["farmer_0"]
    assert mixed["farmer_1"] < restrained["farmer_1"]


def test_an_agent_that_takes_nothing_starves_and_leaves_once_while_the_others_continue(env):
    results = live(env, 0, one_fasts)

    ends = [e for result in results for e in result.events if isinstance(e, ew.AgentEnd)]
    leaving = next(result for result in results if result.events)
    assert [(end.agent_id, end.reward, end.terminated, end.truncated) for end in ends] == [
        ("farmer_2", -10.0, True, False)
    ]
    assert ends[0].observation.energy == 0
    assert not leaving.done
    assert [need.agent_id for need in leaving.needs] == ["farmer_0", "farmer_1", "farmer_3"]
    assert all("farmer_2" not in later.observation for later in results[leaving.step_index + 1 :])
    assert results[-1].step_index == 50


def test_an_action_for_an_agent_that_left_is_refused_by_name(env):
    result = env.reset(seed=0)
    while "farmer_2" in env.agents:
        result = env.step({n.agent_id: {"take": one_fasts(n.agent_id)} for n in result.needs})

    with pytest.raises(ew.errors.ActionError, match=r"'farmer_2'\]: this agent has left"):
        env.step({agent: {"take": 2} for agent in FARMERS})


@pytest.mark.parametrize("take", [lambda _: 2, lambda _: 5, one_fasts, lambda _: 0])
def test_the_rewards_that_requests_carry_sum_to_what_each_agent_earned(env, take):
    results = live(env, 1, take)

    assert carried(results) == pytest.approx(earned(results))


def test_all_may_starve_and_the_episode_is_over(env):
    last = live(env, 0, lambda _: 0)[-1]

    assert last.end.reason == "terminated"
    assert last.step_index <= 6


def test_a_short_stock_is_shared_in_proportion_to_the_requests():
    asked = {"farmer_0": 5, "farmer_1": 4, "farmer_2": 3, "farmer_3": 5}

    with ew.make("harvest-v0") as env:
        last = live(env, 0, lambda agent: asked[agent])[-1]

    assert 0 < last.reward["farmer_0"] < 5
    assert last.reward["farmer_1"] == pytest.approx(last.reward["farmer_0"] * 4 / 5)
    assert last.reward["farmer_2"] == pytest.approx(last.reward["farmer_0"] * 3 / 5)


def test_a_starving_agents_reward_has_parts(env):
    results = live(env, 0, one_fasts)

    leaving = next(result for result in results if result.events)
    parts = leaving.info["farmer_2"]["reward_parts"]
    assert parts == {"harvest": 0.0, "starving": -10.0}


def test_every_remaining_agent_counts_as_alive(env):
    results = live(env, 0, one_fasts)

    leaving = next(result for result in results if result.events)
    assert leaving.observation["farmer_0"].alive == 0.75


def test_seeds_reproduce_an_episode_and_differ_from_each_other(env):
    first, again, other = (live(env, seed, lambda _: 3) for seed in (4, 4, 5))

    assert [r.observation for r in first] == [r.observation for r in again]
    assert first[0].observation != other[0].observation


@pytest.mark.parametrize("num_agents", [2, 7])
def test_observations_fit_their_spec_with_any_number_of_agents(num_agents):
    with ew.make("harvest-v0", num_agents=num_agents) as env:
        for take in (0, 2, 3, 5):
            for result in live(env, take, lambda _, take=take: take):
                for agent, observation in result.observation.items():
                    assert env.observation_spec[agent].contains(observation)


@pytest.mark.parametrize("take", [6, -1, 2.5, "all"])
def test_taking_an_invalid_amount_is_refused(env, take):
    env.reset(seed=0)

    with pytest.raises(ew.errors.ActionError, match=r"action\['farmer_1'\]\.take"):
        env.step({agent: {"take": take if agent == "farmer_1" else 2} for agent in FARMERS})
