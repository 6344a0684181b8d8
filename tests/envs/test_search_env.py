"""The search environment: six configurations, of which each is best for some queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.envs.search_env import (
    CONFIGS,
    FEATURES,
    Document,
    Retriever,
    SearchEnvironment,
    make_corpus,
)
from envweave.testing import EnvironmentConformance


class TestSearchEnvironment(EnvironmentConformance):
    def make_environment(self) -> SearchEnvironment:
        return SearchEnvironment(num_docs=30, num_queries=5, shuffle=True)


def rewards_and_features(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what each configuration earns for each query, and the features of each query."""
    rewards, features = [], []
    for action in range(len(CONFIGS)):
        environment = SearchEnvironment(seed=seed)
        shown = [environment.reset()]
        while not shown[-1].done:
            shown.append(environment.step(action))
        rewards.append([one.reward for one in shown[1:]])
        features = [one.features for one in shown[:-1]]
    return np.array(rewards).T, np.array(features)


def test_it_is_registered_and_rewards_recall_and_rank() -> None:
    with ew.make("search-v0", num_docs=50, num_queries=3, seed=4) as env:
        began = env.reset(seed=1)
        results = [env.step(action) for action in (1, 2, 3)]

    assert began.observation.query == make_corpus(50, 3, seed=4).queries[0].text
    assert began.observation.features.shape == (len(FEATURES),)
    assert [result.done for result in results] == [False, False, True]
    assert results[-1].observation.query == ""
    for result in results:
        assert result.reward == sum(result.metrics.values()) / 2
        assert set(result.metrics) == {"recall", "reciprocal_rank"}


def test_an_unknown_configuration_is_refused() -> None:
    with ew.make("search-v0", num_docs=10, num_queries=1) as env:
        env.reset()

        with pytest.raises(ew.errors.ActionError, match="6"):
            env.step(6)


@pytest.mark.parametrize(
    "wrong", [{"num_docs": 0}, {"num_queries": "9"}, {"k": 2.5}, {"seed": None}]
)
def test_a_nonnumeric_or_too_small_keyword_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ew.errors.OptionError, match=f"{next(iter(wrong))} must be an integer"):
        ew.make("search-v0", **wrong)


def test_documents_and_queries_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    assert make_corpus(40, 20, seed=1) == make_corpus(40, 20, seed=1)
    assert make_corpus(40, 20, seed=1) != make_corpus(40, 20, seed=2)


def test_embeddings_are_the_same_in_every_process() -> None:
    documents = [Document("a", text) for text in ("kafo mira", "mira sete", "sete luna kafo")]

    found = [Retriever(config, documents).search("sete luna", 2).tolist() for config in CONFIGS]

    # Python's own hash of a text differs between processes; these figures must not.
    assert found == [[2, 1], [2, 1], [0, 1], [2, 1], [2, 0], [2, 1]]


def test_shuffled_queries_come_in_an_order_that_follows_the_seed() -> None:
    def order(seed: int, *, shuffle: bool) -> list[str]:
        with ew.make("search-v0", num_docs=20, num_queries=12, shuffle=shuffle) as env:
            result = env.reset(seed=seed)
            seen = []
            while not result.done:
                seen.append(result.observation.query)
                result = env.step(0)
        return seen

    plain = order(1, shuffle=False)

    assert plain == order(2, shuffle=False)
    assert order(1, shuffle=True) == order(1, shuffle=True) != order(2, shuffle=True)
    assert sorted(order(1, shuffle=True)) == sorted(plain)


def test_each_configuration_is_the_best_for_one_kind_of_query() -> None:
    rewards, _ = rewards_and_features(seed=1)
    kinds = np.array([query.kind for query in make_corpus(200, 256, seed=1).queries])

    best = {int(rewards[kinds == kind].mean(axis=0).argmax()) for kind in set(kinds)}

    assert best == set(range(len(CONFIGS)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_policy_that_reads_the_query_beats_the_best_fixed_configuration(seed: int) -> None:
    rewards, features = rewards_and_features(seed)
    inputs = np.c_[features, np.ones(len(features))]
    known, held_out = slice(0, 128), slice(128, 256)

    weights = np.linalg.lstsq(inputs[known], rewards[known], rcond=None)[0]
    chosen = (inputs[held_out] @ weights).argmax(axis=1)

    contextual = rewards[held_out][np.arange(len(chosen)), chosen].mean()
    assert contextual > rewards[held_out].mean(axis=0).max() + 0.2


@pytest.mark.slow  # starts worker processes
def test_it_is_the_same_in_every_kind_of_vector() -> None:
    actions = np.arange(4) % len(CONFIGS)

    def play(**how: object) -> list[list[float]]:
        with ew.make_vector("search-v0", num_envs=4, shuffle=True, autoreset=True, **how) as venv:
            venv.reset(seed=3)
            return [venv.step(actions).reward.tolist() for _ in range(20)]

    serial = play()

    assert play(mode="threads") == serial
    assert play(backend="process", workers=2) == serial
