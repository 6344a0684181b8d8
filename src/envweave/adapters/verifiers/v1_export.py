"""Export environments as v1 verifiers environments. Needs verifiers 0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import verifiers.v1 as vf

from envweave.adapters.verifiers.harness import ChatHarness
from envweave.adapters.verifiers.text_episodes import TextEnvironments, in_thread


class EpisodeData(vf.TaskData):  # type: ignore[misc] # verifiers is not installed where mypy runs
    """The subject of an episode: a task of the environment, or a seed."""

    task_id: str | None = None
    seed: int | None = None


class EpisodeTask(vf.Task[EpisodeData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """An episode. Its rewards are recorded while it is played."""


def v1_classes(
    make_environments: Callable[[], TextEnvironments],
    *,
    split: str | None,
    num_examples: int,
    max_turns: int,
    system_prompt: str | None,
) -> tuple[type, type, type]:
    """Return the `Taskset`, the `Env` and the `Harness` that a module exports."""
    default_split, default_number = split, num_examples

    class EpisodesConfig(vf.TasksetConfig):  # type: ignore[misc]
        split: str | None = default_split
        """Which split the tasks are of; the first one by default."""
        num_examples: int = default_number
        """How many tasks to take of an endless split, and how many seeds."""

    class EpisodesTaskset(vf.Taskset[EpisodeTask, EpisodesConfig]):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.environments = make_environments()

        def load(self) -> Iterator[Any]:
            """List the tasks, without a prompt: the environment sends the first message."""
            environments = self.environments
            prompt = system_prompt or environments.actions.instructions or None
            for row in environments.rows(self.config.split, self.config.num_examples):
                name = row["task_id"] or f"seed-{row['seed']}"
                data = EpisodeData(name=name, prompt=None, system_prompt=prompt, **row)
                yield EpisodeTask(data, self.config.task)

    class EpisodesEnvConfig(vf.EnvConfig):  # type: ignore[misc]
        player: vf.AgentConfig = vf.AgentConfig(
            runtime=vf.SubprocessConfig(), max_turns=None if max_turns < 0 else max_turns
        )

    class EpisodesEnv(vf.Env[EpisodesEnvConfig]):  # type: ignore[misc]
        async def run(self, task: Any, agents: Any) -> None:
            """Play one episode. An error here fails the episode, which then has no reward."""
            environments = self.taskset.environments
            episode = await environments.acquire()
            try:
                message = await in_thread(episode.start, task.data.model_dump())
                async with agents.player.interaction(task) as interaction:
                    segment = await interaction.turn(message)
                    while not segment.terminated:
                        message = await in_thread(episode.act, segment.last_reply)
                        if episode.is_over:
                            break
                        segment = await interaction.turn(message)
            finally:
                await environments.release(episode)
            for name, part in (episode.parts or {"reward": 0.0}).items():
                interaction.trace.record_reward(name, part)
            interaction.trace.record_metrics(episode.metrics)

        async def stop(self) -> None:
            self.taskset.environments.close()

    return EpisodesTaskset, EpisodesEnv, ChatHarness
