"""Types that differ from agent to agent, by `TypedDict` and by `action_spec`; on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from environments.typed import BySpec, ByTypedDict, Dig, Found, Heard, SayWord, TypedDictEnvironment
from gymnasium import spaces
from servers import served

import envweave as ew
from envweave.errors import ActionError, DefinitionError
from envweave.testing import check_environment

ENVIRONMENTS = [ByTypedDict, BySpec]
ACTIONS = {"guide": {"word": "cold"}, "digger": {"depth": 2}}


@pytest.mark.parametrize("env_class", ENVIRONMENTS)
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_each_agent_acts_and_sees_in_its_own_type(backend: str, env_class: Any) -> None:
    with ew.make(env_class, backend=backend) as env:
        env.reset(seed=0)

        result = env.step(ACTIONS)

        assert result.observation == {
            "guide": Found(2, reward=1.0),
            "digger": Heard("cold", reward=2.0),
        }
        with pytest.raises(ActionError, match=r"^action\['digger'\]\.depth: 4 is not between"):
            env.step({"guide": SayWord(), "digger": {"depth": 4}})
        with pytest.raises(ActionError, match=r"^action\['guide'\]\.depth: unknown field"):
            env.step({"guide": {"depth": 1}, "digger": Dig()})
        assert env.step({"guide": SayWord(), "digger": Dig()}).step_index == 2


@pytest.mark.parametrize("env_class", ENVIRONMENTS)
def test_each_agent_has_its_own_schema_at_a_server(env_class: Any) -> None:
    with served(env_class) as url, ew.make(url) as env:
        env.reset(seed=0)
        result = env.step(ACTIONS)

        assert result.observation["guide"].depth == 2
        assert result.observation["digger"].word == "cold"
        with pytest.raises(ActionError, match=r"^action\['digger'\]\.depth"):
            env.step({"guide": {}, "digger": {"depth": 9}})
        drawn = env.action_spec.sample(np.random.default_rng(0))
        assert env.step(drawn).step_index == 2


@pytest.mark.parametrize("env_class", ENVIRONMENTS)
def test_the_authors_classes_come_back_where_they_are_known(env_class: Any) -> None:
    with served(env_class) as url, ew.make(env_class, base_url=url) as env:
        env.reset(seed=0)

        shown = env.step({"guide": SayWord("cold"), "digger": Dig(2)}).observation

        assert shown == {"guide": Found(2, reward=1.0), "digger": Heard("cold", reward=2.0)}


@pytest.mark.parametrize("options", [{}, {"mode": "threads"}, {"backend": "process"}])
@pytest.mark.parametrize("env_class", ENVIRONMENTS)
def test_a_vector_keeps_each_agents_columns(env_class: Any, options: Any) -> None:
    with ew.make_vector(env_class, num_envs=2, **options) as venv:
        venv.reset(seed=0)

        batch = venv.step({"guide": {"word": ["hot", "cold"]}, "digger": {"depth": [1, 3]}})

        assert batch.current["guide"]["depth"].tolist() == [1, 3]
        assert list(batch.current["digger"]["word"]) == ["hot", "cold"]
        with pytest.raises(ActionError, match=r"^actions\[1\]\['digger'\]\.depth"):
            venv.step([ACTIONS, {"guide": {}, "digger": {"depth": 9}}])


@pytest.mark.parametrize("env_class", ENVIRONMENTS)
def test_pettingzoo_is_given_a_space_for_each_agent(env_class: Any) -> None:
    with ew.make(env_class) as inside:
        env = ew.to_pettingzoo(inside)

        assert env.action_space("guide") == spaces.Discrete(2)
        assert env.action_space("digger") == spaces.Discrete(3, start=1)


@pytest.mark.parametrize("env_class", [*ENVIRONMENTS, TypedDictEnvironment])
def test_every_promise_is_kept_with_these_types(env_class: Any) -> None:
    failed = [outcome for outcome in check_environment(env_class, max_steps=100) if not outcome.ok]

    assert failed == []


# Typed dicts as actions and observations


@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_a_typed_dict_is_checked_by_key_and_stays_a_plain_dict(backend: str) -> None:
    with ew.make(TypedDictEnvironment, backend=backend) as env:
        env.reset()

        result = env.step({"to": 3})

        assert result.observation == {"at": 3, "label": "none"}
        assert type(result.observation) is dict
        for action, words in [
            ({"to": 3, "noet": "x"}, r"^action\['noet'\]: unknown key. Did you mean 'note'\?"),
            ({"note": "x"}, r"^action\['to'\]: this key is missing"),
            ({"to": "three"}, r"^action\['to'\]: 'three' is not an int"),
            ({"to": 10}, r"^action\['to'\]: 10 is not between 0 and 9"),
        ]:
            with pytest.raises(ActionError, match=words):
                env.step(action)


def test_a_typed_dict_is_the_same_at_a_server() -> None:
    with served(TypedDictEnvironment) as url, ew.make(url) as env:
        env.reset()

        assert env.step({"to": 3, "note": "x"}).observation == {"at": 3, "label": "x"}
        with pytest.raises(ActionError, match=r"Did you mean 'note'"):
            env.step({"to": 3, "noet": "x"})


def test_a_vector_of_typed_dicts_has_a_column_for_each_key() -> None:
    with ew.make_vector(TypedDictEnvironment, num_envs=2) as venv:
        venv.reset()

        batch = venv.step([{"to": 1}, {"to": 2}])

        assert batch.current["at"].tolist() == [1, 2]


# What cannot be meant


class _Two(ew.MultiAgentEnvironment):
    possible_agents = ("a", "b")

    def reset(self) -> dict[str, Any]:
        return {"a": 0, "b": 0}

    def step(self, actions: dict[str, Any]) -> Any:
        return {}


class _One(ew.Environment):
    def reset(self) -> int:
        return 0

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return action, 0.0, False, False, {}


class _TakesOneForAll(_Two):
    def step(self, actions: SayWord) -> Any:
        return {}


@pytest.mark.parametrize(
    ("env_class", "given", "words"),
    [
        (_Two, {"a": SayWord}, r"There is no action_spec for the possible agent 'b'"),
        (_Two, {"a": SayWord, "b": Dig, "c": Dig}, r"for 'c', which is not in possible_agents"),
        (_Two, {"a": SayWord, "b": 3}, r"_Two\.action_spec\['b'\] must be a type or a Spec.*got 3"),
        (_Two, {"a": SayWord, "b": {"x": Dig}}, r"dict of dicts"),
        (_One, 3, r"_One\.action_spec must be a type or a Spec.*got 3"),
        (_One, "Say", r"_One\.action_spec must be a type"),
        (_One, {"a": SayWord, "b": Dig}, r"but the environment has one agent"),
        (_TakesOneForAll, None, r"type hint of .* is SayWord\. .* dict\[str, SayWord\]"),
    ],
)
def test_invalid_types_are_refused_by_name(env_class: Any, given: Any, words: str) -> None:
    made = type(env_class.__name__, (env_class,), {"action_spec": given})

    with pytest.raises(DefinitionError, match=words):
        ew.make(made)


@pytest.mark.parametrize("given", [Dig, {"agent": Dig}, spaces.Discrete(3, start=1)])
def test_one_agent_may_have_a_type_as_its_action_spec(given: Any) -> None:
    made = type("Digs", (_One,), {"action_spec": given})

    with ew.make(made) as env:
        env.reset()
        env.step(env.action_spec.sample(np.random.default_rng(0)))

        with pytest.raises(ActionError):
            env.step({"dpeth": 1})


def test_a_wrapper_may_set_the_types_of_agents() -> None:
    class Renamed(ew.Wrapper):
        action_spec = {"a": Dig, "b": SayWord}  # noqa: RUF012 - as authors write it

    with ew.make(lambda: Renamed(_Two())) as env:
        assert env.action_spec["a"].contains({"depth": 1})
        assert not env.action_spec["b"].contains({"depth": 1})
