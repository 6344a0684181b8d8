"""An environment of the second generation of verifiers, with a tool that has a state."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf
from pydantic import Field


class Bag(vf.State):
    items: list[int] = Field(default_factory=list)


class BagTools(vf.Toolset[vf.ToolsetConfig, Bag]):
    TOOL_PREFIX = "bag"

    @vf.tool
    async def put(self, number: int) -> str:
        """Put a number into the bag."""
        self.state.items = [*self.state.items, number]
        return f"{len(self.state.items)} in the bag"


class BagTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class BagTask(vf.Task[vf.TaskData, Bag, BagTaskConfig]):
    @classmethod
    def toolsets(cls, config: BagTaskConfig) -> list[vf.Toolset]:
        return [BagTools(config.tools)]

    @vf.reward
    async def total(self, trace: vf.Trace) -> float:
        return float(sum(trace.state.items))


class BagConfig(vf.TasksetConfig):
    task: BagTaskConfig = BagTaskConfig()


class BagTaskset(vf.Taskset[BagTask, BagConfig]):
    def load(self) -> Iterator[BagTask]:
        yield BagTask(vf.TaskData(prompt="Fill the bag."), self.config.task)


__all__ = ["BagTaskset"]

if __name__ == "__main__":
    BagTools.run()
