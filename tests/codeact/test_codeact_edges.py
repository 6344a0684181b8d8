"""Exit codes that code asks for, very large seeds, graders without `async`."""

from __future__ import annotations

import pytest

import envweave as ew
from envweave.codeact import Executor, Grade, Grader
from envweave.errors import OptionError


@pytest.fixture(scope="module")
def env():
    with ew.create_codeact_env() as env:
        yield env


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit", 0),
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(-1)", 255),
        ("raise SystemExit('no')", 1),
        ("raise SystemExit('9' * 10_000)", 1),
        ("raise SystemExit('٣')", 1),
        ("raise ValueError(3)", 1),
    ],
)
def test_an_exit_reports_its_code_and_the_episode_continues(env, code, exit_code):
    env.reset()

    observation = env.step(ew.CodeAction(code))

    assert (observation.exit_code, observation.done, observation.truncated) == (
        exit_code,
        False,
        False,
    )


def test_seeds_of_any_size_are_used(env):
    def draw(seed):
        env.reset(seed=seed)
        return env.step(ew.CodeAction("random.random()")).execution_result.return_value

    seeds = [2**63 - 1, 2**63, 2**63 + 1, 10**30]

    drawn = [draw(seed) for seed in seeds]

    assert len(set(drawn)) == len(seeds)
    assert [draw(seed) for seed in seeds] == drawn


def test_a_grader_may_be_a_plain_function():
    class Plain(Grader):
        def grade(self, attempt):
            return Grade(0.5, passed=attempt.answer == 1)

    with ew.create_codeact_env(grader=Plain(), grade="every_step") as env:
        env.reset()
        observation = env.step(ew.CodeAction("1"))

    assert (observation.reward, observation.done) == (0.5, True)


class OwnExecutor(Executor):
    """Runs nothing."""

    name = "own"
    isolation = "none"

    async def begin(self, *, seed, tools, files):
        raise NotImplementedError

    async def run(self, code):
        raise NotImplementedError

    async def variables(self):
        return {}

    async def close(self):
        pass


@pytest.mark.parametrize(
    "option", [{"limits": {"timeout_s": 1.0}}, {"preload": ["json"]}, {"profile": "shell"}]
)
def test_options_are_refused_if_the_executor_exists_already(option):
    executor = OwnExecutor()

    with pytest.raises(OptionError, match=f"{next(iter(option))}=… has no effect.*OwnExecutor"):
        ew.create_codeact_env(executor=executor, **option)
