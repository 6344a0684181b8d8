"""Train a tiny language model with TRL: `python -m envweave.examples.train_trafficlight_trl`.

TRL's `GRPOTrainer` trains a Qwen3 with random weights on TrafficLight, whole conversations at a
time. To check that learning follows the reward, flip its sign (`--reward-sign -1`): the share of
right moves falls below chance.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import envweave as ew
from envweave.agents import ReplyAgent
from envweave.examples.traffic_light import RULES, TrafficLightEnv
from envweave.examples.training import FIRST_SEED, Evaluation, RunLog, replace_file
from envweave.examples.training.program import (
    RECENT,
    ShowProgress,
    TrainingConfig,
    TrainingInterrupted,
    positive_float,
    positive_int,
    run_program,
    training_parser,
)
from envweave.examples.training.tiny_language_model import tiny_language_model, tiny_tokenizer
from envweave.trainers.token_sampling import TokenSampler
from envweave.trainers.trl import TRLRollouts

CHECKPOINT = "checkpoint.json"
CHAT = {"render": "{color}", "max_invalid": None}
LIGHTS = 3
SEEDS = 4_096  # to train on; not by the number of episodes, so that a longer run goes on the same


@dataclass(frozen=True, kw_only=True)
class TrafficLightConfig(TrainingConfig):
    """How to train on TrafficLight.

    Attributes:
        group_size: How many episodes share a seed.
        learning_rate: The learning rate.
        reward_sign: −1 flips the reward, to check that learning follows it.
        evaluation_episodes: How many episodes evaluate a policy.
        checkpoint_every: After how many updates the run is saved.
    """

    num_envs: int = 64
    episodes: int = 7_680
    group_size: int = 8
    learning_rate: float = 0.003
    reward_sign: int = 1
    evaluation_episodes: int = 256
    checkpoint_every: int = 20


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    parser, add = training_parser(
        prog or "python -m envweave.examples.train_trafficlight_trl",
        "Train a tiny language model on TrafficLight with TRL's GRPOTrainer.",
        TrafficLightConfig(),
        "trafficlight-v0",
        can_resume=True,
    )
    add("--group-size", type=positive_int, metavar="N", help="episodes that share a seed")
    add("--learning-rate", type=positive_float, metavar="X", help="learning rate")
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the reward: a sanity check, success must fall below chance")  # fmt: skip
    add("--evaluation-episodes", type=positive_int, metavar="N",
        help="episodes to evaluate a policy")  # fmt: skip
    add("--checkpoint-every", type=positive_int, metavar="N", help="updates between checkpoints")
    return run_program(parser, argv, TrafficLightConfig, train)


def train(config: TrafficLightConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate, write log and checkpoints, and return the run's directory.

    Raises:
        MissingExtraError: TRL is not installed.
        EnvWeaveError: The backend or the run directory is not available.
        TrainingInterrupted: Ctrl-C was pressed; the log keeps what was written.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    try:
        import datasets
        import torch
        from transformers import PrinterCallback
        from transformers.utils import logging
        from trl import GRPOConfig, GRPOTrainer
    except ImportError:
        raise ew.errors.MissingExtraError.for_extra(
            "Training on TrafficLight needs TRL.", "train,trl"
        ) from None
    if config.num_envs % config.group_size or config.episodes % config.num_envs:
        raise ew.errors.OptionError(
            f"--num-envs {config.num_envs} must be a multiple of --group-size {config.group_size}, "
            f"and --episodes {config.episodes} one of --num-envs."
        )
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # more don't speed up such a small network
    tokenizer = tiny_tokenizer([*RULES, *RULES.values()])
    run_dir = config.open_run_dir("trafficlight")
    saved = run_dir / CHECKPOINT
    state = json.loads(saved.read_text()) if config.resume and saved.exists() else {}
    with (
        TRLRollouts(
            TrafficLightEnv, size=config.num_envs, chat=CHAT, max_turn_tokens=1, max_steps=LIGHTS,
            backend=config.backend, lights=LIGHTS, record=run_dir if config.record else None,
        ) as rollouts,
        RunLog(
            run_dir, config.logged("TrafficLight"), keep_lines=state.get("log_lines", 0)
        ) as log,
    ):  # fmt: skip
        run = _TrafficLightTraining(config, rollouts, log, run_dir, show)
        trainer = GRPOTrainer(
            tiny_language_model(tokenizer, seed=config.seed),
            run.reward,
            GRPOConfig(
                output_dir=str(run_dir / "checkpoints"),
                per_device_train_batch_size=config.num_envs,
                num_generations=config.group_size,
                max_completion_length=32,
                max_steps=config.episodes // config.num_envs,
                learning_rate=config.learning_rate,
                lr_scheduler_type="constant",
                seed=config.seed,
                beta=0.0,
                save_steps=config.checkpoint_every,
                save_total_limit=1,
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
            ),
            datasets.Dataset.from_list(rollouts.rows(number=SEEDS)),
            processing_class=tokenizer,
            rollout_func=rollouts,
            callbacks=[run.callback()],
        )
        trainer.remove_callback(PrinterCallback)  # standard output is the summary's
        try:
            if not state:
                rng = random.Random(config.seed)  # noqa: S311 - a baseline
                run.evaluate("random", lambda _: rng.choice(list(RULES.values())))
            trainer.train(resume_from_checkpoint=state.get("folder"))
            sampler = TokenSampler(
                tokenizer,
                _Greedy(trainer.model, tokenizer),
                batch_size=config.num_envs,
                max_completion_length=32,
                max_turn_tokens=1,
            )
            run.evaluate("trained", sampler)
        except KeyboardInterrupt:
            log.write("interrupted", episodes=run.finished)
            raise TrainingInterrupted(run_dir, run.finished, can_resume=True) from None
    return run_dir


@final
class _TrafficLightTraining:
    """A training run: its log, its checkpoints, its progress."""

    def __init__(
        self,
        config: TrafficLightConfig,
        rollouts: TRLRollouts,
        log: RunLog,
        run_dir: Path,
        show: ShowProgress | None,
    ) -> None:
        self._config, self._rollouts, self._log = config, rollouts, log
        self._run_dir, self._show = run_dir, show
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.finished = 0

    def reward(self, env_reward: list[float | None], **kwargs: Any) -> list[float | None]:
        """Return the rewards, with their sign."""
        sign = self._config.reward_sign
        rewards = self._rollouts.reward(env_reward, **kwargs)
        return [None if one is None else sign * one for one in rewards]

    def evaluate(self, name: str, reply: Any) -> None:
        """Play episodes with the replies of a policy, and log the result."""
        count = self._config.evaluation_episodes
        seeds = [FIRST_SEED + index for index in range(count)]
        played = ew.rollout(
            self._rollouts.pool, ReplyAgent(reply, **CHAT), seed=seeds, max_steps=LIGHTS,
            progress=False,
        ).run()  # fmt: skip
        mean = float(np.mean([episode.reward for episode in played if episode.usable]))
        self._log.write("evaluation", policy=name, **Evaluation(mean, mean, count).logged())

    def callback(self) -> Any:
        """Return what the trainer calls after each step and each checkpoint."""
        from transformers import TrainerCallback

        class Callback(TrainerCallback):
            def on_step_end(_, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002, N805
                self._after_update(state.global_step)

            def on_save(_, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002, N805
                folder = f"{args.output_dir}/checkpoint-{state.global_step}"
                text = json.dumps({"folder": folder, "log_lines": self._log.num_lines})
                replace_file(self._run_dir / CHECKPOINT, lambda path: path.write_text(text))

        return Callback()

    def _after_update(self, update: int) -> None:
        self.finished = update * self._config.num_envs
        rewards = [one.reward for one in self._rollouts.episodes if one.usable]
        mean = float(np.mean(rewards)) if rewards else None
        self._log.write(
            "update", update=update, episode=self.finished, success=mean, **{"return": mean}
        )
        if mean is not None:
            self._recent.append(mean)
            if self._show is not None:
                recent = float(np.mean(self._recent))
                self._show(self.finished, recent, recent)


@final
class _Greedy:
    """Samples the likeliest tokens of a model."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    def __call__(self, prompts: list[list[int]], limit: int) -> tuple[list[list[int]], None]:
        """Return the likeliest tokens after each prompt."""
        import torch

        longest = max(map(len, prompts))
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(one)) + one for one in prompts])
        mask = (ids != pad).long()
        with torch.no_grad():
            made = self._model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=limit, do_sample=False
            )
        return made[:, longest:].tolist(), None


if __name__ == "__main__":
    sys.exit(main())
