"""An environment of the second generation of verifiers: one or more turns, no tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

cleaned: list[Any] = []
"""The tasks whose episode was left, however it ended."""


class TalkData(vf.TaskData):
    kind: str
    answer: str


class TalkConfig(vf.TasksetConfig):
    kind: str = "single"


class TalkTask(vf.Task[TalkData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        if self.data.kind == "failing_reward":
            raise ValueError("the judge is away")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.assistant_messages[0].content or "") < 20)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class TalkTaskset(vf.Taskset[TalkTask, TalkConfig]):
    INFINITE = False

    def load(self) -> Iterator[TalkTask]:
        for n in range(5):
            data = TalkData(
                prompt=f"What is {n}+3?",
                system_prompt="Add.",
                answer=f"secret {n + 3}",
                kind=self.config.kind,
            )
            yield TalkTask(data, self.config.task)


class TalkEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class TalkEnv(vf.Env[TalkEnvConfig]):
    has_started = False

    async def start(self) -> None:
        if self.taskset.config.kind == "slow_start":
            await asyncio.sleep(0.3)
        self.has_started = True

    async def run(self, task: Any, agents: Any) -> None:
        assert self.has_started
        if task.data.kind == "failing_setup":
            raise RuntimeError("no sandbox")
        if task.data.kind == "single":
            await agents.player.run(task)
            return
        try:
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()
                while not segment.terminated and segment.last_reply != task.data.answer:
                    if segment.last_reply == "fail":
                        raise RuntimeError("the sandbox is gone")
                    segment = await interaction.turn(f"You said {segment.last_reply!r}.")
        finally:
            cleaned.append(task.data.idx)


__all__ = ["TalkEnv", "TalkTaskset"]
