"""TRL's `GRPOTrainer`: whole episodes for its `rollout_func`, all environments at the same time.

Every reply is sampled by the trainer itself, in batches of those episodes that wait for one, and
its tokens are trained on as they were sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, final

from envweave.agents import ReplyAgent, Tokens, training_tokens
from envweave.errors import OptionError
from envweave.rollouts import pool, rollout
from envweave.trainers.episodes import several_agents
from envweave.trainers.token_sampling import TokenSampler
from envweave.types import Episode


@final
class TRLRollouts:
    """The episodes of an environment for TRL's `GRPOTrainer`.

        with TRLRollouts("gsm8k-v0", size=64) as rollouts:
            dataset = datasets.Dataset.from_list(rollouts.rows("train"))
            trainer = GRPOTrainer(model, rollouts.reward, args, dataset, rollout_func=rollouts)
            trainer.train()

    An episode that fails through no fault of the model is played again, in another environment;
    if that fails too, it has no reward: TRL leaves it out of its group's mean and trains on none
    of its tokens. All tokens of an episode after the first prompt, those of the environment
    included, are at most `max_completion_length`; at that limit the episode is truncated.

    Args:
        env: What `pool` takes.
        size: How many episodes run at the same time.
        chat: How conversations look: `system`, `render`, `use_tools`, … of `chat`.
        max_turn_tokens: How many tokens one reply may have; by default as many as are left.
        max_steps: Truncate an episode after this many steps.
        attempts: How often an episode is played before it is given up.
        **options: Passed to `pool`, such as `backend`.

    Raises:
        DefinitionError: The environment has several agents.

    Attributes:
        pool: The environments.
        episodes: Those of the last batch.
    """

    __name__ = "envweave"

    def __init__(
        self,
        env: Any,
        *,
        size: int,
        chat: Mapping[str, Any] | None = None,
        max_turn_tokens: int | None = None,
        max_steps: int | None = None,
        attempts: int = 3,
        **options: Any,
    ) -> None:
        self._chat = dict(chat or {})
        ReplyAgent(str, **self._chat)  # refuses unknown options
        self._limits: dict[str, Any] = {"max_steps": max_steps, "attempts": attempts}
        self._max_turn_tokens = max_turn_tokens
        self.pool = pool(env, size=size, **options)
        if self.pool.possible_agents is not None:
            self.close()
            raise several_agents(self.pool.id)
        self.episodes: list[Episode] = []

    def rows(self, split: str | None = None, number: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a dataset: one for each task of a split, or for each seed.

        Args:
            split: The first one by default.
            number: How many; by default all tasks.

        Raises:
            OptionError: There is no end of them, and no `number`.
        """
        tasks = self.pool.tasks
        length = None if tasks is None else tasks.length(split or tasks.splits[0])
        if number is None and length is None:
            raise OptionError("There is no end of tasks or seeds. Pass number=….")
        count = length if number is None else number if length is None else min(number, length)
        assert count is not None
        names = (
            [f"seed {seed}" for seed in range(count)]
            if tasks is None
            else [tasks.at(split or tasks.splits[0], index).id for index in range(count)]
        )
        return [{"prompt": [{"role": "user", "content": name}]} for name in names]

    def reward(self, env_reward: list[float | None], **kwargs: Any) -> list[float | None]:
        """Return the rewards of the episodes, for `reward_funcs`: `None` where one has none."""
        log = kwargs.get("log_metric")
        if log is not None and self.episodes:
            log("episodes/unusable", sum(not one.usable for one in self.episodes))
            log("episodes/length", sum(one.length for one in self.episodes) / len(self.episodes))
        return env_reward

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play an episode for each prompt, which names its task or seed."""
        names = [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in prompts]
        has_tasks = self.pool.tasks is not None
        about: dict[str, Any] = {"tasks": names} if has_tasks else {}
        if "seed" in self.pool.interface.reset_takes:
            first = trainer.args.seed + 7919 * trainer.state.global_step
            about["seed"] = first if has_tasks else [int(name.split()[-1]) for name in names]
        elif not has_tasks:
            about["episodes"] = len(names)
        tokenizer = trainer.processing_class
        sampler = TokenSampler(
            tokenizer,
            partial(_sample, trainer),
            batch_size=self.pool.size,
            max_completion_length=trainer.args.max_completion_length,
            max_turn_tokens=self._max_turn_tokens,
            context_length=getattr(trainer.model.config, "max_position_embeddings", None),
        )
        agent = ReplyAgent(sampler, **self._chat)
        played = rollout(self.pool, agent, progress=False, **self._limits, **about)
        self.episodes = played.run()
        sequences = [_sequence(one, tokenizer.eos_token_id) for one in self.episodes]
        return {
            "prompt_ids": [one.prompt_ids for one in sequences],
            "completion_ids": [one.completion_ids for one in sequences],
            "logprobs": None
            if any(one.logprobs is None for one in sequences)
            else [one.logprobs for one in sequences],
            "env_mask": [one.mask for one in sequences],
            "env_reward": [
                one.reward if one.usable and one.reward is not None else None
                for one in self.episodes
            ],
        }

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self.pool.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pool.__exit__(kind, error, trace)


def _sequence(episode: Episode, end_id: int) -> Tokens:
    """Return the tokens to train on; a single one with the mask 0 if there is nothing to train."""
    turns = [step.extra for step in episode.steps if isinstance(step.extra, Tokens)]
    if turns and episode.usable:
        return training_tokens(turns)[0]  # one, since each prompt extends the one before
    return Tokens(prompt_ids=[end_id], completion_ids=[end_id], logprobs=[0.0], mask=[0])


def _sample(trainer: Any, prompts: list[list[int]], limit: int) -> Any:
    # transformers reads its limit here; vLLM's is fixed, and what is too long is cut.
    config = getattr(trainer, "generation_config", None)
    before = None if config is None else config.max_new_tokens
    try:
        if config is not None:
            config.max_new_tokens = limit
        return trainer._generate_single_turn(prompts, None, {}, 1)  # noqa: SLF001 - TRL has no public way to sample
    finally:
        if config is not None:
            config.max_new_tokens = before
