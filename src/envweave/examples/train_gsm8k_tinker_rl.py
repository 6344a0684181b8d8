"""Train a language model on GSM8K through Tinker.

`python -m envweave.examples.train_gsm8k_tinker_rl` is the command; it needs `$TINKER_API_KEY` and
`pip install 'envweave[train,tinker]'`. It is a group-relative policy gradient: each question is
answered several times, and the advantage of an answer is its reward minus the group's mean.
Writes `metrics.jsonl` and `metrics.png` into the run's directory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import envweave as ew
from envweave.examples.training import RunLog, read_run_log, replace_file
from envweave.examples.training.program import (
    ShowProgress,
    TrainingInterrupted,
    fraction,
    positive_float,
    positive_int,
    run_program,
    training_parser,
)
from envweave.examples.training.tinker_policy import (
    Completion,
    TinkerConfig,
    TinkerPolicy,
    require_tinker,
)

__all__ = ["GSM8KConfig", "main", "train"]

ENV_IDS = ("gsm8k-v0", "gsm8k-choice-v0")
CHECKPOINT = "checkpoint.json"
EVALUATION_SEED = 2**31 - 1
TARGET_WINDOW = 100
"""How many of the last episodes `--target-success-rate` is computed over."""


@dataclass(frozen=True, kw_only=True)
class GSM8KConfig(TinkerConfig):
    """How to train on GSM8K.

    Attributes:
        env: `gsm8k-v0` or `gsm8k-choice-v0`.
        data: The folder of the dataset, on the machine of the environments; see `GSM8KEnv`.
        download: Whether to download it.
        max_examples: The maximum number of questions of each split.
        group_size: Completions of each question.
        groups_per_step: Questions of one batch, which is at most one optimizer step.
        temperature: The sampling temperature in training. Evaluation takes the likeliest token.
        sync_every: Optimizer steps between refreshes of the sampling weights.
        checkpoint_every: Batches between checkpoints.
        target_success_rate: Stop when the last 100 episodes reach it.
        evaluation_tasks: Held-out questions to evaluate the model before and after.
        reward_sign: −1 flips the advantage, to check that learning follows it.
    """

    num_envs: int = 8
    episodes: int = 2048
    env: str = ENV_IDS[0]
    data: str | None = None
    download: bool = False
    max_examples: int | None = None
    group_size: int = 8
    groups_per_step: int = 8
    temperature: float = 1.0
    sync_every: int = 1
    checkpoint_every: int = 5
    target_success_rate: float | None = None
    evaluation_tasks: int = 64
    reward_sign: int = 1

    def environment_options(self) -> dict[str, Any]:
        """Return the options of the environments that were set."""
        options: dict[str, Any] = {"path": self.data, "max_examples": self.max_examples}
        if self.download:
            options["download"] = True
        return {name: value for name, value in options.items() if value is not None}


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    parser, add = training_parser(
        prog or "python -m envweave.examples.train_gsm8k_tinker_rl",
        "Train a language model on GSM8K by group-relative policy gradient, through "
        "Tinker. Needs $TINKER_API_KEY.",
        GSM8KConfig(),
        ENV_IDS[0],
        can_resume=True,
    )
    add("--env", choices=ENV_IDS, help="a number as the answer, or one of four choices")
    add("--data", metavar="DIR",
        help="folder with train.jsonl and test.jsonl, where the environments run")  # fmt: skip
    parser.add_argument("--download", action="store_true", help="download GSM8K into the cache")
    add(
        "--max-examples",
        type=positive_int,
        metavar="N",
        help="maximum number of questions of each split",
    )
    add("--base-model", metavar="NAME", help="the model at Tinker")
    add("--rank", type=positive_int, metavar="N", help="rank of the LoRA weights")
    add("--learning-rate", "--lr", type=positive_float, metavar="X", help="learning rate of Adam")
    add("--group-size", type=_group_size, metavar="N", help="completions of each question")
    add("--groups-per-step", type=positive_int, metavar="N", help="questions of one batch")
    add("--max-tokens", type=positive_int, metavar="N", help="longest completion")
    add("--temperature", type=positive_float, metavar="X", help="sampling temperature in training")
    add("--loss-fn", choices=("importance_sampling", "ppo", "cispo"), help="Tinker's loss")
    add("--sync-every", type=positive_int, metavar="N",
        help="optimizer steps between refreshes of the sampling weights")  # fmt: skip
    add("--checkpoint-every", type=positive_int, metavar="N", help="batches between checkpoints")
    add("--target-success-rate", type=fraction, metavar="X",
        help=f"stop when the last {TARGET_WINDOW} episodes reach it")  # fmt: skip
    add("--evaluation-tasks", type=positive_int, metavar="N",
        help="held-out questions to evaluate the model before and after")  # fmt: skip
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the advantage: a sanity check, the reward must then fall")  # fmt: skip
    add("--tokenizer", metavar="MODULE:NAME",
        help="makes the tokenizer; by default the model's own, which is downloaded")  # fmt: skip
    add("--service-timeout-s", type=positive_float, metavar="S",
        help="timeout of one call to Tinker, in seconds")  # fmt: skip
    return run_program(parser, argv, GSM8KConfig, train)


def _group_size(text: str) -> int:
    value = positive_int(text)
    if value < 2:
        raise argparse.ArgumentTypeError("a group of 1 has nothing to compare; use 2 or more")
    return value


def train(config: GSM8KConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate before and after, write the log, and return the run's directory.

    Raises:
        EnvWeaveError: The environments, the service or the run directory is not available, or
            the service was lost; the message says how to continue.
        TrainingInterrupted: Ctrl-C was pressed; the log keeps what was written.
    """
    require_tinker()
    with config.make_pool(config.env, **config.environment_options()) as pool:
        dataset = _dataset(pool)
        checkpoint = _Checkpoint.read(config)
        with TinkerPolicy(config, state=checkpoint.state) as policy:
            run_dir = config.open_run_dir("gsm8k" if config.env == ENV_IDS[0] else "gsm8k-choice")
            settings = _settings(config, policy, dataset)
            with RunLog(run_dir, settings, keep_lines=checkpoint.log_lines) as log:
                run = _TinkerTraining(config, pool, policy, log, checkpoint)
                try:
                    run.run(show)
                except KeyboardInterrupt:
                    log.write("interrupted", episodes=run.finished)
                    raise TrainingInterrupted(run_dir, run.finished, can_resume=True) from None
                except (ew.errors.ServerError, ew.errors.RolloutFailedError) as error:
                    raise type(error)(
                        f"{error} The weights of the last checkpoint are kept; continue with "
                        f"the same options and: --run-dir {run_dir} --resume"
                    ) from error
    return run_dir


def _dataset(pool: ew.Pool) -> str:
    """Return the name of the dataset that the environments have."""
    assert pool.tasks is not None
    if missing := {"train", "test"}.difference(pool.tasks.splits):
        raise ew.errors.OptionError(
            f"The dataset has no {missing.pop()}.jsonl. Training needs train.jsonl, and evaluation "
            "test.jsonl; put both into the folder."
        )
    (episode,) = ew.rollout(
        pool, lambda _: {"text": ""}, tasks=["test-0"], seed=0, progress=False
    ).run()
    return str(episode.info["dataset"])


def _settings(config: GSM8KConfig, policy: TinkerPolicy, dataset: str) -> dict[str, Any]:
    title = {"gsm8k": "GSM8K", "gsm8k-sample": "GSM8K sample"}.get(dataset, "GSM8K, custom rows")
    if config.env != ENV_IDS[0]:
        title += ", four choices"
    if policy.is_fake:
        title += " [fake service, no language model]"
    settings = {**config.logged(title), "dataset": dataset}
    # Where the model runs; a fake's figures must never be taken for a result.
    settings["env_backend"] = settings["backend"]
    settings["backend"] = "fake" if policy.is_fake else "tinker"
    return settings


@dataclass(frozen=True, kw_only=True)
class _Checkpoint:
    """Where a run can be resumed.

    Attributes:
        state: Tinker's path of the weights and the optimizer's state; `None` at the beginning.
        batches: The number of batches played.
        steps: How many optimizer steps were taken.
        log_lines: How many lines the log had.
    """

    state: str | None = None
    batches: int = 0
    steps: int = 0
    log_lines: int = 0

    @classmethod
    def read(cls, config: GSM8KConfig) -> _Checkpoint:
        """Return the last checkpoint of the run to resume, or the beginning."""
        path = None if config.run_dir is None else config.run_dir / CHECKPOINT
        if not config.resume or path is None or not path.is_file():
            return cls()
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@final
class _TinkerTraining:
    """A training run. Episodes depend only on the seed and the number of the batch."""

    def __init__(
        self,
        config: GSM8KConfig,
        pool: ew.Pool,
        policy: TinkerPolicy,
        log: RunLog,
        checkpoint: _Checkpoint,
    ) -> None:
        self._config, self._pool, self._policy, self._log = config, pool, policy, log
        self._batches, self._steps = checkpoint.batches, checkpoint.steps
        self._recent: deque[tuple[float, float]] = deque(maxlen=TARGET_WINDOW)
        self._saves = 0
        self.finished = 0
        for line in read_run_log(log.path.parent):
            if line["type"] == "episode":
                self._count(line["return"], line["success"])

    def run(self, show: ShowProgress | None) -> None:
        """Evaluate, train and evaluate again."""
        if not self._batches:
            self._evaluate("base")
        while self.finished < self._config.episodes and not self._has_reached_target():
            self._learn(self._play_batch())
            if show is not None and self._recent:
                earned, success = np.mean(self._recent, axis=0)
                show(self.finished, float(earned), float(success))
        if self._steps % self._config.sync_every:
            self._policy.refresh()
        self._save()
        self._evaluate("trained")

    def _has_reached_target(self) -> bool:
        target = self._config.target_success_rate
        if target is None or len(self._recent) < TARGET_WINDOW:
            return False
        return float(np.mean([success for _, success in self._recent])) >= target

    def _play_batch(self) -> list[list[ew.Episode]]:
        """Play the next questions, each as often as a group has members."""
        size = self._config.group_size
        groups = min(
            self._config.groups_per_step, -(-(self._config.episodes - self.finished) // size)
        )
        first = self._batches * self._config.groups_per_step
        tasks = [self._task_id(first + i) for i in range(groups)]
        seed = _mix(self._config.seed, self._batches)
        self._batches += 1
        episodes = self._play(tasks, size, seed, self._config.temperature)
        for episode in episodes:
            self._log_episode(episode)
        return [list(group) for _, group in itertools.groupby(episodes, lambda e: e.group)]

    def _task_id(self, index: int) -> str:
        """Return the training question at an index of an endless, reshuffled sequence."""
        assert self._pool.tasks is not None
        count = self._pool.tasks.length("train")
        assert count is not None
        epoch, place = divmod(index, count)
        order = np.random.default_rng([self._config.seed, epoch]).permutation(count)
        return f"train-{order[place]}"

    def _play(
        self, tasks: Sequence[str], group_size: int, seed: int, temperature: float
    ) -> list[ew.Episode]:
        """Return the episodes by group and, within one, by the seed of their completion.

        The members of a group share the seed of the environment, so they share the prompt. Which
        environment plays which completion differs from run to run, and makes no difference.
        """
        drawn: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)

        async def agent(result: ew.StepResult[Any]) -> ew.Decision:
            group_seed = result.info["seed"]
            sample_seed = _mix(group_seed, next(drawn[group_seed]))
            prompt = self._policy.encode(result.observation.prompt)
            completion = await self._policy.sample(
                prompt, temperature=temperature, seed=sample_seed
            )
            return ew.Decision({"text": self._policy.decode(completion)}, (sample_seed, completion))

        played = ew.rollout(
            self._pool,
            agent,
            tasks=tasks,
            group_size=group_size,
            seed=seed,
            share_seed=True,
            progress=False,
            record=self._log.path.parent if self._config.record else None,
        ).run()
        return sorted(played, key=lambda episode: (episode.group, _sample_seed(episode)))

    def _learn(self, groups: list[list[ew.Episode]]) -> None:
        """Take an optimizer step on the groups whose rewards differ, if there are any."""
        config = self._config
        examples: list[tuple[Completion, float]] = []
        informative = 0
        for group in groups:
            # A lost episode is left out, never counted as 0.
            usable = [episode for episode in group if episode.usable]
            rewards = np.array([episode.reward for episode in usable])
            if len(usable) < 2 or np.ptp(rewards) == 0:
                continue
            informative += 1
            for episode, advantage in zip(usable, rewards - rewards.mean(), strict=True):
                completion = episode.steps[-1].extra[1]
                examples.append((completion, config.reward_sign * float(advantage)))
        if examples:
            metrics = self._policy.update(examples)
            self._steps += 1
            self._log.write(
                "update",
                update=self._steps,
                batch=self._batches,
                groups=len(groups),
                informative_groups=informative,
                completions=len(examples),
                **{name: round(value, 6) for name, value in sorted(metrics.items())},
            )
            if self._steps % config.sync_every == 0:
                self._policy.refresh()
        if self._batches % config.checkpoint_every == 0 and self._steps % config.sync_every == 0:
            self._save()

    def _save(self) -> None:
        """Save a checkpoint. Two alternate at Tinker, so that one is complete at any time."""
        self._saves += 1
        fields = {
            "state": self._policy.save(f"{self._config.env}-{self._saves % 2}"),
            "batches": self._batches,
            "steps": self._steps,
            "log_lines": self._log.num_lines,
        }
        path = self._log.path.with_name(CHECKPOINT)
        replace_file(path, lambda new: new.write_text(json.dumps(fields) + "\n", "utf-8"))

    def _evaluate(self, policy: str) -> None:
        """Evaluate the model on held-out questions, with greedy sampling."""
        assert self._pool.tasks is not None
        split = "test"
        count = min(self._config.evaluation_tasks, self._pool.tasks.length(split) or 0)
        episodes = self._play([f"{split}-{i}" for i in range(count)], 1, EVALUATION_SEED, 0.0)
        usable = [episode for episode in episodes if episode.usable]
        self._log.write(
            "evaluation",
            policy=policy,
            split=split,
            episodes=len(usable),
            lost=len(episodes) - len(usable),
            success=_mean([episode.metrics["success"] for episode in usable]),
            format=_mean([episode.metrics["format"] for episode in usable]),
            **{"return": _mean([episode.reward for episode in usable])},
        )

    def _log_episode(self, episode: ew.Episode) -> None:
        usable = episode.usable
        earned = round(episode.reward, 6) if usable else None
        success = episode.metrics["success"] if usable else None
        self._count(earned, success)
        completion = episode.steps[-1].extra[1] if usable else None
        self._log.write(
            "episode",
            episode=self.finished,
            batch=self._batches,
            group=episode.group,
            task=episode.task_id,
            success=success,
            format=episode.metrics["format"] if usable else None,
            tokens=None if completion is None else len(completion.tokens),
            stopped=None if completion is None else completion.stopped,
            **{"return": earned},
        )

    def _count(self, earned: float | None, success: float | None) -> None:
        self.finished += 1
        if earned is not None and success is not None:
            self._recent.append((earned, success))


def _sample_seed(episode: ew.Episode) -> int:
    return int(episode.steps[-1].extra[0]) if episode.steps else -1


def _mix(*numbers: int) -> int:
    """Derive a seed from numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 6) if values else 0.0


if __name__ == "__main__":
    sys.exit(main())
