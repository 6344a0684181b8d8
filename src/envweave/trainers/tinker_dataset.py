"""Tinker's cookbook: the dataset of an environment, for `train.Config`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import chz
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder

from envweave.api import make_async
from envweave.errors import OptionError
from envweave.trainers.tinker_cookbook import TinkerGroup
from envweave.types import Tasks


@final
class TinkerDataset(RLDataset):
    """Batches of groups: the tasks of a split in order, or seeds."""

    def __init__(self, groups: Sequence[TinkerGroup], groups_per_batch: int) -> None:
        self._groups, self._size = list(groups), groups_per_batch

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return the groups of a batch."""
        return self._groups[index * self._size : (index + 1) * self._size]

    def __len__(self) -> int:
        return math.ceil(len(self._groups) / self._size)


@chz.chz
class TinkerDatasetBuilder(RLDatasetBuilder):
    """Builds the dataset of an environment, for `train.Config` of the cookbook.

    Attributes:
        env: The ID of the environment.
        model_name: Names the tokenizer.
        renderer_name: The cookbook's name of how conversations become tokens.
        batch_size: How many groups a batch has.
        group_size: How many episodes a group has.
        batches: How many batches; by default all tasks of the split. Needed where they have no end.
        split: The split to train on; by default the first.
        test_split: The split to evaluate on, if any.
        first_seed: The seed of the first group of an environment without tasks.
        options: Options of `chat`.
        make: Options of `make_async`, such as `backend`.
        limits: Options of the cookbook's `EnvFromMessageEnv`.
    """

    env: str
    model_name: str
    renderer_name: str
    batch_size: int
    group_size: int
    batches: int | None = None
    split: str | None = None
    test_split: str | None = None
    first_seed: int = 0
    options: dict[str, Any] = chz.field(default_factory=dict)
    make: dict[str, Any] = chz.field(default_factory=dict)
    limits: dict[str, Any] = chz.field(default_factory=dict)

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the datasets to train and to evaluate on.

        Raises:
            OptionError: There is no end of tasks or seeds, and no `batches`.
        """
        async with make_async(self.env, **self.make) as env:
            tasks = env.tasks
            train = self._groups(tasks, self.split)
            test = None if self.test_split is None else self._groups(tasks, self.test_split)
        return TinkerDataset(train, self.batch_size), test and TinkerDataset(test, self.batch_size)

    def _groups(self, tasks: Tasks | None, split: str | None) -> list[TinkerGroup]:
        name = None if tasks is None else split or tasks.splits[0]
        length = None if tasks is None else tasks.length(str(name))
        wanted = None if self.batches is None else self.batches * self.batch_size
        if wanted is None and length is None:
            raise OptionError("There is no end of tasks or seeds. Pass batches=….")
        count = wanted if length is None else length if wanted is None else min(wanted, length)
        about = [
            {"seed": self.first_seed + index}
            if tasks is None
            else {"task_id": tasks.at(str(name), index).id}
            for index in range(count or 0)
        ]
        return [
            TinkerGroup(
                self.env,
                self.model_name,
                self.renderer_name,
                self.group_size,
                options=dict(self.options),
                make=dict(self.make),
                limits=dict(self.limits),
                **one,
            )
            for one in about
        ]
