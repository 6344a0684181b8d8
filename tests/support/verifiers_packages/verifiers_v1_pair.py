"""An environment of the second generation of verifiers, with two roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class PairTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class PairTaskset(vf.Taskset[PairTask, vf.TasksetConfig]):
    def load(self) -> Iterator[PairTask]:
        yield PairTask(vf.TaskData(prompt="Is it so?"), self.config.task)


class PairConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        trace = await agents.writer.run(task)
        await agents.critic.run(task.with_data(prompt=f"Was {trace.last_reply!r} right?"))


__all__ = ["PairEnv", "PairTaskset"]
