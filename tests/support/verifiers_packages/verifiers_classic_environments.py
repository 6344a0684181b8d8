"""Environments of the classic generation of verifiers, for `verifiers://verifiers_classic_environments`."""

from __future__ import annotations

import asyncio
from typing import Any

import verifiers as vf
from datasets import Dataset, disable_progress_bars

disable_progress_bars()

cleaned: list[Any] = []
"""The rollouts that were cleaned up, by the id of their row."""
torn_down: list[str] = []


def load_environment(kind: str = "single", **options: Any) -> vf.Environment:
    rows = Dataset.from_list(
        [{"question": f"What is {n}+3?", "answer": f"secret {n + 3}"} for n in range(5)]
    )
    rubric = vf.Rubric(funcs=[correct, brief], weights=[1.0, 0.25])
    if kind == "single":
        held_out = rows.select([3, 4])
        return vf.SingleTurnEnv(
            dataset=rows, eval_dataset=held_out, rubric=rubric, system_prompt="Add.", **options
        )
    if kind == "failing_rubric":
        rubric.add_reward_func(broken_reward)
        return vf.SingleTurnEnv(dataset=rows, rubric=rubric)
    if kind == "group":
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[longest]))
    if kind == "tools":
        return vf.ToolEnv(tools=[add], dataset=rows, rubric=rubric, max_turns=4)
    if kind == "stateful":
        return BagEnv(dataset=rows, rubric=vf.Rubric(funcs=[items_in_bag]))
    return TalkEnv(kind, dataset=rows, rubric=vf.Rubric(funcs=[correct]), **options)


async def correct(completion: Any, answer: str) -> float:
    replies = [message.content for message in completion if message.role == "assistant"]
    return float(replies[-1:] == [answer])


def brief(completion: Any) -> float:
    return 1.0 if len(completion[0].content or "") < 20 else 0.0


def broken_reward(completion: Any) -> float:
    raise ValueError("the judge is away")


def longest(completions: Any) -> list[float]:
    return [float(len(one)) for one in completions]


def items_in_bag(state: Any) -> float:
    return float(sum(state["bag"]))


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


class BagEnv(vf.StatefulToolEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__(tools=[], **options)
        self.add_tool(self.put, args_to_skip=["bag"])

    async def setup_state(self, state: Any) -> Any:
        state["bag"] = []
        return state

    def update_tool_args(
        self, tool_name: str, tool_args: dict, messages: Any, state: Any, **kwargs: Any
    ) -> dict:
        return {**tool_args, "bag": state["bag"]}

    async def put(self, number: int, bag: list) -> str:
        """Put a number into the bag.

        Args:
            number: Which.
            bag: Where.
        """
        bag.append(number)
        return f"{len(bag)} in the bag"


class TalkEnv(vf.MultiTurnEnv):
    """Talks until it gets the answer, or does what its kind says."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(max_turns=options.pop("max_turns", -1), **options)
        self.kind = kind

    async def setup_state(self, state: Any) -> Any:
        if self.kind == "failing_setup":
            raise vf.InfraError("no sandbox")
        return state

    async def get_prompt_messages(self, state: Any) -> Any:
        messages = await super().get_prompt_messages(state)
        return messages[-1:] if self.kind == "forgetful" and state["trajectory"] else messages

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        reply = messages[-1].content
        if reply == "fail":
            raise vf.InfraError("the sandbox is gone")
        if reply == "crash":
            raise KeyError("a bug")
        if reply == "hang":
            await asyncio.Event().wait()
        response = [vf.UserMessage(content=f"You said {reply!r}.")]
        if reply == state["answer"]:
            state["final_env_response"] = response
        return response

    @vf.cleanup
    async def note(self, state: Any) -> None:
        await asyncio.sleep(0)  # as one that talks to a server does
        cleaned.append(state["example_id"])

    @vf.teardown
    async def note_teardown(self) -> None:
        torn_down.append(self.kind)
