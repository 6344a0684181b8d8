"""A tool knows the task and the seed of the episode that it is called in, and its own state."""

from __future__ import annotations

import asyncio

import pytest

import envweave as ew
from envweave.codeact import Grade, Grader
from envweave.errors import CallOrderError
from envweave.tools import current_episode

TASKS = ew.Tasks(
    {"train": [ew.Task(str(n), data={"n": n}, private={"goal": 10 * n}) for n in (1, 2)]}
)


def add(amount: int) -> int:
    """Add to the total of the episode."""
    state = current_episode().state
    state["total"] = state.get("total", 0) + amount
    return state["total"]


async def describe() -> tuple[str | None, int | None]:
    """Describe the episode."""
    await asyncio.sleep(0)
    episode = current_episode()
    return (None if episode.task is None else episode.task.id, episode.seed)


class TotalReached(Grader):
    async def grade(self, attempt):
        passed = attempt.tool_state.get("total") == attempt.task.private["goal"]
        return Grade(float(passed), passed)


@pytest.fixture(params=["inproc", "sandbox"])
def make(request):
    def make_env():
        return ew.create_codeact_env(
            executor=request.param, tools=[add, describe], tasks=TASKS, grader=TotalReached()
        )

    return make_env


def test_tools_know_the_task_and_the_seed(make):
    with ew.make(make) as env:
        env.reset(task="2", seed=7)
        result = env.step(ew.CodeAction(code="describe()"))

    assert tuple(result.observation.execution_result.return_value) == ("2", 7)


def test_the_state_of_tools_is_graded_and_begins_anew_with_each_episode(make):
    with ew.make(make) as env:
        rewards = []
        for task, amount in (("1", 10), ("2", 10), ("2", 20)):
            env.reset(task=task)
            result = env.step(ew.CodeAction(code=f"add({amount}); final_answer()"))
            rewards.append(result.reward)

    assert rewards == [1.0, 0.0, 1.0]


def test_episodes_at_the_same_time_share_no_state(make):
    def agent(result):
        if result.step_index < 2:
            return ew.CodeAction(code="add(5)")
        return ew.CodeAction(code=f"add({10 * int(result.task_id) - 10}); final_answer()")

    with ew.pool(make, size=2) as pool:
        episodes = ew.rollout(pool, agent, tasks=["1", "2"], group_size=2).run()

    assert [episode.reward for episode in episodes] == [1.0] * 4


def test_calls_by_name_have_the_episode_of_the_last_open():
    tools = ew.ToolRegistry([add])

    async def play():
        totals = []
        for _ in range(2):
            await tools.open()
            calls = [await tools.call("add", {"amount": amount}) for amount in (1, 2)]
            totals += [call.value for call in calls]
        return totals

    assert asyncio.run(play()) == [1, 3, 1, 3]


def test_outside_an_episode_there_is_none():
    with pytest.raises(CallOrderError, match="outside an episode"):
        current_episode()
