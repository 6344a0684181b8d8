"""The presets, and that a reward is applied exactly once however an environment is opened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from servers import served

import envweave as ew

CODES = {
    "safe and right": "21 * 2",
    "safe and wrong": "21 * 3",
    "safe and failing": "21 / 0",
    "unsafe and right": "import os\n21 * 2",
    "unsafe and wrong": "import os\n21 * 3",
}
PARTS = {
    "safe and right": {"math": 1.0, "quality": 0.05, "safety": 0.0},
    "safe and wrong": {"math": 0.0, "quality": 0.05, "safety": 0.0},
    "safe and failing": {"math": 0.0, "quality": -0.1, "safety": 0.0},
    "unsafe and right": {"math": 1.0, "quality": 0.05, "safety": -2.05},
    "unsafe and wrong": {"math": 0.0, "quality": 0.05, "safety": -1.05},
}
REWARDS = {
    "safe and right": 1.05,
    "safe and wrong": 0.05,
    "safe and failing": -0.1,
    "unsafe and right": -1.0,
    "unsafe and wrong": -1.0,
}


def math_env() -> Any:
    return ew.create_codeact_env(transform=ew.create_math_env_transform(expected_answer=42))


@contextlib.contextmanager
def bare() -> Iterator[Any]:
    with math_env() as env:
        yield env


@contextlib.contextmanager
def set_later() -> Iterator[Any]:
    with ew.create_codeact_env() as env:
        env.transform = ew.create_math_env_transform(expected_answer=42)
        yield env


@contextlib.contextmanager
def made() -> Iterator[Any]:
    with ew.make(math_env()) as env:
        yield env


@contextlib.contextmanager
def given_to_make() -> Iterator[Any]:
    with ew.make(ew.create_codeact_env(), transform=ew.create_math_env_transform(42)) as env:
        yield env


@contextlib.contextmanager
def wrapped() -> Iterator[Any]:
    with ew.make(ew.EpisodeStatistics(math_env()), max_episode_steps=100) as env:
        yield env


@contextlib.contextmanager
def by_url() -> Iterator[Any]:
    with served(math_env(), ew.CodeAction, ew.CodeObservation) as url, ew.make(url) as env:
        yield env


LOCAL_CLIENTS = [bare, set_later, made, given_to_make, wrapped, by_url]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("open_client", LOCAL_CLIENTS, ids=lambda open_client: open_client.__name__)
def test_the_reward_is_applied_exactly_once_with_every_client(open_client: Any) -> None:
    with open_client() as env:
        first = env.reset()
        steps = {name: env.step({"code": code}) for name, code in CODES.items()}

    infos = {name: getattr(one, "metadata", None) or one.info for name, one in steps.items()}
    assert first.reward is None
    assert {name: one.reward for name, one in steps.items()} == pytest.approx(REWARDS)
    assert {name: one["reward_parts"] for name, one in infos.items()} == PARTS
    assert [one["code_safety"]["safe"] for one in infos.values()] == [True] * 3 + [False] * 2


def test_the_reward_is_applied_exactly_once_in_a_vector() -> None:
    registry = ew.Registry()
    registry.register("local://math-v0", math_env)

    with ew.make_vector("local://math-v0", num_envs=len(CODES), registry=registry) as venv:
        venv.reset()
        batch = venv.step([{"code": code} for code in CODES.values()])

    assert batch.reward.tolist() == pytest.approx(list(REWARDS.values()))


def test_code_that_ends_its_session_is_charged_as_well() -> None:
    env = ew.create_codeact_env(
        transform=ew.create_math_env_transform(42), fatal_reward=0.5, limits={"timeout_s": 2}
    )
    with ew.make(env) as env:
        env.reset()

        result = env.step({"code": "import os\nos._exit(0)"})

    assert (result.done, result.end.blame, result.reward) == (True, "agent", -1.0)
    assert result.reward_parts == {"base": 0.5, "math": 0.0, "quality": -0.1, "safety": -1.4}


def test_the_math_preset_takes_the_options_of_its_parts() -> None:
    transform = ew.create_math_env_transform(
        42, right=2.0, wrong=-0.5, tolerance=1, accept_text=True, ends=True, penalty=-3.0
    )
    with ew.make(ew.create_codeact_env(transform=transform)) as env:
        results = []
        for code in ("'40'", "import os\n42.5", "'41'"):
            env.reset()
            results.append(env.step({"code": code}))

    assert [(one.reward, one.terminated) for one in results] == [
        (-0.45, False),
        (-3.0, True),
        (2.05, True),
    ]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    ("options", "safe", "unsafe"),
    [
        ({}, {"quality": 0.05, "safety": 0.0}, {"quality": 0.05, "safety": -1.05}),
        ({"quality": False}, {"safety": 0.0}, {"safety": -1.0}),
        (
            {"quality": False, "penalty": -2.0, "safe_reward": 0.5},
            {"safety": 0.5},
            {"safety": -2.0},
        ),
    ],
)
def test_the_safety_preset_does_not_reward_the_task(
    options: dict[str, Any], safe: dict[str, float], unsafe: dict[str, float]
) -> None:
    with ew.make(ew.create_codeact_env(transform=ew.create_safe_env_transform(**options))) as env:
        env.reset()

        results = [env.step({"code": code}) for code in ("21 * 2", "import os\n21 * 2")]

    assert [result.reward_parts for result in results] == [safe, unsafe]
