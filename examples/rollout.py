"""Whole episodes with an async agent: eight at a time, four for each task, as they finish."""

import asyncio

import envweave as ew
from envweave.codeact import NumericMatch

TASKS = ew.Tasks({"train": [
    ew.Task("sum", data={"prompt": "1 + ... + 100?"}, private={"answer": 5050}),
    ew.Task("digits", data={"prompt": "Digits of 2 ** 100?"}, private={"answer": 31}),
]})  # fmt: skip
PROGRAMS = {
    "1 + ... + 100?": "final_answer(sum(range(101)))",
    "Digits of 2 ** 100?": "final_answer(len(str(2 ** 100)) - 1)",  # wrong by one
}


def make():
    """Code in a sandbox, graded outside of it."""
    return ew.create_codeact_env(grader=NumericMatch(from_task="answer"), tasks=TASKS)


async def agent(result):
    """Stand in for a model: wait a little, then answer the prompt."""
    await asyncio.sleep(0.01)
    return ew.CodeAction(code=PROGRAMS[result.observation.prompt])


async def main():
    """Play four episodes of each task."""
    async with ew.pool(make, size=8) as pool:
        playing = ew.rollout(pool, agent, tasks=TASKS("train"), group_size=4, progress=False)
        async for episode in playing:
            print(episode.task_id, episode.length, episode.reward)


asyncio.run(main())
