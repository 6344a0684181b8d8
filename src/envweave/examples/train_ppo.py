"""Train with PPO of stable-baselines3: `python -m envweave.examples.train_ppo lineworld`.

Also `cartpole`. stable-baselines3 gets the environment through `ew.to_gymnasium`. To check that
learning follows the reward, flip its sign (`--reward-sign -1`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np

import envweave as ew
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

__all__ = ["TASKS", "PPOConfig", "PPOTask", "main", "train"]

CHECKPOINT = "checkpoint.zip"


@dataclass(frozen=True)
class PPOTask:
    """An environment to train on.

    Attributes:
        env_id: Its ID.
        title: Its name in summaries and pictures.
        num_envs: How many environments by default.
        episodes: How many episodes by default.
        rollout_steps: How many steps of each environment an update uses, by default.
        learning_rate: The learning rate at the start.
        max_return: The return that counts as success, where no metric says; divides the returns
            that are logged.
    """

    env_id: str
    title: str
    num_envs: int
    episodes: int
    rollout_steps: int
    learning_rate: float
    max_return: float = 1.0


TASKS = {
    "lineworld": PPOTask("lineworld-v0", "LineWorld, PPO", 8, 600, 64, 0.003),
    "cartpole": PPOTask("gym://CartPole-v1", "CartPole, PPO", 8, 400, 32, 0.001, max_return=500.0),
}


@dataclass(frozen=True, kw_only=True)
class PPOConfig(TrainingConfig):
    """How to train.

    Attributes:
        task: The name of the environment in `TASKS`.
        learning_rate: The learning rate of Adam at the start; it falls to 0.
        gamma: The discount per step.
        reward_sign: −1 flips the reward, to check that learning follows it.
        rollout_steps: How many steps of each environment an update uses.
        evaluation_episodes: How many fresh episodes evaluate a policy.
        checkpoint_every: After how many updates the run is saved.
    """

    task: str = "lineworld"
    num_envs: int = 8
    episodes: int = 600
    learning_rate: float = 0.003
    gamma: float = 0.98
    reward_sign: int = 1
    rollout_steps: int = 64
    evaluation_episodes: int = 50
    checkpoint_every: int = 5


def main(argv: list[str] | None = None, *, task: str | None = None, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process, after the name of the task.
        task: The name of the environment in `TASKS`.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option or the name is wrong (2), or help was requested (0).
    """
    argv = sys.argv[1:] if argv is None else argv
    program = "python -m envweave.examples.train_ppo"
    if task is None:
        if not argv or argv[0] not in TASKS:
            sys.stderr.write(f"usage: {program} {{{','.join(TASKS)}}} [options]\n")
            raise SystemExit(2)
        task, argv = argv[0], argv[1:]
        program += f" {task}"
    chosen = TASKS[task]
    default = PPOConfig(
        task=task,
        num_envs=chosen.num_envs,
        episodes=chosen.episodes,
        rollout_steps=chosen.rollout_steps,
        learning_rate=chosen.learning_rate,
    )
    parser, add = training_parser(
        prog or program,
        f"Train {chosen.env_id} with PPO of stable-baselines3, and show the curve.",
        default,
        chosen.env_id,
        can_resume=True,
    )
    add("--learning-rate", type=positive_float, metavar="X", help="learning rate of Adam")
    add("--gamma", type=positive_float, metavar="X", help="discount per step")
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the reward: a sanity check, success must then fall")  # fmt: skip
    add("--rollout-steps", type=positive_int, metavar="N",
        help="steps of each environment for an update")  # fmt: skip
    add("--evaluation-episodes", type=positive_int, metavar="N",
        help="fresh episodes to evaluate the random and the trained policy")  # fmt: skip
    add("--checkpoint-every", type=positive_int, metavar="N", help="updates between checkpoints")
    return run_program(parser, argv, lambda **given: PPOConfig(task=task, **given), train)


def train(config: PPOConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate, write the log, and return the run's directory.

    Args:
        config: The settings.
        show: Called after every finished episode.

    Raises:
        EnvWeaveError: The backend or the run directory is not available.
        MissingExtraError: stable-baselines3 is not installed.
        TrainingInterrupted: Ctrl-C was pressed; the log and the last checkpoint are kept.
    """
    sb3 = _stable_baselines3()
    task = TASKS[config.task]
    run_dir = config.open_run_dir(f"ppo-{config.task}")
    envs = sb3.common.vec_env.DummyVecEnv(
        [_maker(config, task, run_dir, index) for index in range(config.num_envs)]
    )
    try:
        run = _PPORun(config, task, envs, run_dir, sb3)
        with RunLog(run_dir, config.logged(task.title), keep_lines=run.log_lines) as log:
            try:
                run.play(log, show)
            except KeyboardInterrupt:
                raise TrainingInterrupted(run_dir, run.finished, can_resume=True) from None
    finally:
        envs.close()
    return run_dir


def _stable_baselines3() -> ModuleType:
    try:
        import stable_baselines3
        import stable_baselines3.common.vec_env
        import torch
    except ImportError:
        raise ew.errors.MissingExtraError(
            "stable-baselines3 is not installed. Install it with: "
            "pip install 'envweave[gym,train]' stable-baselines3"
        ) from None
    torch.set_num_threads(1)  # more don't speed up such small networks, and wait for each other
    return stable_baselines3  # type: ignore[no-any-return]


def _maker(config: PPOConfig, task: PPOTask, run_dir: Path, index: int) -> Callable[[], Any]:
    """Return a function that makes an environment, with the sign of its reward."""
    import gymnasium

    def make() -> Any:
        env = ew.to_gymnasium(
            task.env_id,
            flatten=True,
            record=run_dir if config.record else None,
            **config.placement(),
        )
        env.reset(seed=config.seed * config.num_envs + index)
        return gymnasium.wrappers.TransformReward(
            env, lambda reward: config.reward_sign * float(reward)
        )

    return make


@final
class _FallingRate:
    """A learning rate that falls with the episodes; stable-baselines3 would count steps."""

    def __init__(self, first: float) -> None:
        self.first = first
        self.remaining = 1.0

    def __call__(self, _: float) -> float:
        """Return the rate for the next update."""
        return self.first * max(self.remaining, 0.02)


@final
class _PPORun:
    """A training run, and what its callback counts."""

    def __init__(
        self, config: PPOConfig, task: PPOTask, envs: Any, run_dir: Path, sb3: ModuleType
    ) -> None:
        self._config, self._task, self._envs = config, task, envs
        self._checkpoint = run_dir / CHECKPOINT
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._earned = np.zeros(config.num_envs)
        self._lengths = np.zeros(config.num_envs, int)
        self.finished = self.log_lines = 0
        self._rate = _FallingRate(config.learning_rate)
        self._is_new = not (config.resume and self._checkpoint.exists())
        if self._is_new:
            self._model = sb3.PPO(
                "MlpPolicy",
                envs,
                n_steps=config.rollout_steps,
                batch_size=config.rollout_steps * config.num_envs,
                n_epochs=20,
                gamma=config.gamma,
                gae_lambda=0.8,
                learning_rate=self._rate,
                seed=config.seed,
                device="cpu",
            )
            self._updates = 0
        else:
            self._model = sb3.PPO.load(self._checkpoint, envs, device="cpu")
            kept = self._model.envweave_progress
            # The saved one is a copy, which would not fall.
            self._model.learning_rate = self._rate
            self._model._setup_lr_schedule()  # noqa: SLF001 - there is no public way
            self.finished, self.log_lines, self._updates = kept

    def play(self, log: RunLog, show: ShowProgress | None) -> None:
        """Evaluate, train and evaluate again."""
        from stable_baselines3.common.callbacks import BaseCallback

        run = self

        class Counter(BaseCallback):  # type: ignore[misc] # it is Any here
            def _on_step(self) -> bool:
                ended = run._count(self.locals, log)
                if ended and show is not None:
                    mean = np.mean(run._recent, axis=0)
                    show(run.finished, float(mean[0]), float(mean[1]))
                return run.finished < run._config.episodes

            def _on_rollout_start(self) -> None:
                if run._updates:
                    run._log_update(log)
                run._updates += 1

        if self._is_new:
            rng = np.random.default_rng(self._config.seed)
            actions = int(self._envs.action_space.n)
            chance = self._evaluate(lambda _: int(rng.integers(actions)))
            log.write("evaluation", policy="random", **chance.logged())
        self._model.learn(10**9, callback=Counter(), reset_num_timesteps=self._is_new)
        trained = self._evaluate(lambda seen: int(self._model.predict(seen, deterministic=True)[0]))
        log.write("evaluation", policy="trained", **trained.logged())

    def _log_update(self, log: RunLog) -> None:
        """Log the update that just ended, and save the run from time to time."""
        logged = self._model.logger.name_to_value
        log.write(
            "update",
            update=self._updates,
            steps=int(self._model.num_timesteps),
            **{
                name: round(float(logged[key]), 6)
                for name, key in (
                    ("entropy", "train/entropy_loss"),
                    ("value_error", "train/value_loss"),
                )
                if key in logged
            },
        )
        if self._updates % self._config.checkpoint_every == 0:
            self._model.envweave_progress = self.finished, log.num_lines, self._updates
            replace_file(self._checkpoint, lambda path: self._model.save(path.open("wb")))

    def _count(self, seen: dict[str, Any], log: RunLog) -> bool:
        """Log the episodes that ended in a step; return whether there are any."""
        self._earned += self._config.reward_sign * seen["rewards"]
        self._lengths += 1
        ended = np.flatnonzero(seen["dones"])
        for i in ended.tolist():
            earned, self._earned[i] = float(self._earned[i]), 0.0
            length, self._lengths[i] = int(self._lengths[i]), 0
            if self.finished >= self._config.episodes:
                break
            self.finished += 1
            self._rate.remaining = 1.0 - self.finished / self._config.episodes
            success = self._success(seen["infos"][i], earned)
            scaled = earned / self._task.max_return
            self._recent.append((scaled, success))
            log.write(
                "episode",
                episode=self.finished,
                success=success,
                truncated=bool(seen["infos"][i].get("TimeLimit.truncated", False)),
                length=length,
                env=i,
                **{"return": round(scaled, 6)},
            )
        return len(ended) > 0

    def _success(self, info: dict[str, Any], earned: float) -> float:
        metrics = info.get("metrics") or {}
        if "success" in metrics:
            return float(metrics["success"])
        return max(0.0, min(1.0, earned / self._task.max_return))

    def _evaluate(self, act: Callable[[Any], int]) -> Evaluation:
        """Run fresh episodes, each with its own seed."""
        env = ew.to_gymnasium(self._task.env_id, flatten=True)
        returns, successes = [], []
        for number in range(self._config.evaluation_episodes):
            seen, _ = env.reset(seed=FIRST_SEED + number)
            earned, done = 0.0, False
            info: dict[str, Any] = {}
            while not done:
                seen, reward, terminated, truncated, info = env.step(act(seen))
                earned += float(reward)
                done = terminated or truncated
            returns.append(earned / self._task.max_return)
            successes.append(self._success(info, earned))
        env.close()
        return Evaluation(float(np.mean(successes)), float(np.mean(returns)), len(returns))


if __name__ == "__main__":
    sys.exit(main())
