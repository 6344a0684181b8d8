"""Groups for Tinker's cookbook that report what their episodes earned, for a program's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import chz
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, Trajectory

from envweave.trainers.tinker_dataset import TinkerDatasetBuilder


class BatchReport(Protocol):
    """What a training run learns of its batches."""

    def begin_batch(self, index: int, groups: int) -> None:
        """Note that a batch of this many groups is about to be played."""
        ...

    def finish_group(self, earned: list[float]) -> None:
        """Note what the episodes of a group earned."""
        ...


@final
class ReportingGroup(EnvGroupBuilder):
    """A group whose episodes are reported, and whose rewards may be flipped for the learner."""

    def __init__(self, group: EnvGroupBuilder, reward_sign: int, report: BatchReport) -> None:
        self._group, self._sign, self._report = group, reward_sign, report

    async def make_envs(self) -> Sequence[Env]:
        """Make the environments of the group."""
        made: Sequence[Env] = await self._group.make_envs()
        return made

    async def compute_group_rewards(
        self,
        trajectory_group: list[Trajectory],
        env_group: Sequence[Env],  # noqa: ARG002 - as the cookbook calls it
    ) -> list[tuple[float, dict[str, Any]]]:
        """Return what is added to the rewards of the steps: nothing, or what flips their sum."""
        earned = [sum(step.reward for step in one.transitions) for one in trajectory_group]
        self._report.finish_group(earned)
        return [((self._sign - 1) * one, {}) for one in earned]

    async def cleanup(self) -> None:
        """Close what is still open."""
        await self._group.cleanup()

    def logging_tags(self) -> list[str]:
        """Return the name of the environment."""
        tags: list[str] = self._group.logging_tags()
        return tags


@final
class ReportingDataset(RLDataset):
    """A dataset whose groups are reported."""

    def __init__(self, dataset: RLDataset, reward_sign: int, report: BatchReport) -> None:
        self._dataset, self._sign, self._report = dataset, reward_sign, report

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return the groups of a batch."""
        groups = self._dataset.get_batch(index)
        self._report.begin_batch(index, len(groups))
        return [ReportingGroup(one, self._sign, self._report) for one in groups]

    def __len__(self) -> int:
        return len(self._dataset)


@chz.chz
class ReportingDatasetBuilder(RLDatasetBuilder):
    """Builds a dataset whose groups are reported.

    Attributes:
        builder: Builds the dataset itself.
        reward_sign: −1 flips the rewards that the learner gets.
        report: Called with each group.
    """

    builder: TinkerDatasetBuilder
    reward_sign: int
    report: Any

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the dataset to train on."""
        dataset, _ = await self.builder()
        return ReportingDataset(dataset, self.reward_sign, self.report), None
