"""Train LineWorld by policy gradient: `python -m envweave.examples.train_lineworld_pg`.

Writes `metrics.jsonl` and `metrics.png` into the run's directory, and shows the curve. To check
that learning follows the reward, flip its sign (`--reward-sign -1`): success falls to about 0.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import envweave as ew
from envweave.examples.evaluation import Policy, evaluate
from envweave.examples.policy_gradient import ActorCritic, Array, TrajectoryBatch
from envweave.examples.run_log import RunLog
from envweave.examples.training import (
    RECENT,
    ShowProgress,
    TrainingConfig,
    TrainingInterrupted,
    fraction,
    positive_float,
    positive_int,
    run_program,
    training_parser,
)

__all__ = ["LineWorldConfig", "main", "train"]

ENV_ID = "lineworld-v0"
MOVES = np.array([-1, 1])


@dataclass(frozen=True, kw_only=True)
class LineWorldConfig(TrainingConfig):
    """How to train on LineWorld.

    Attributes:
        learning_rate: The learning rate of Adam, for the actor and the critic.
        gamma: The discount per step.
        reward_sign: −1 flips the reward, to check that learning follows it.
        rollout_steps: How many steps of each environment an update uses.
        evaluation_episodes: How many fresh episodes evaluate a policy.
    """

    num_envs: int = 16
    episodes: int = 400
    learning_rate: float = 0.01
    gamma: float = 0.99
    reward_sign: int = 1
    rollout_steps: int = 16
    evaluation_episodes: int = 200


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    parser, add = training_parser(
        prog or "python -m envweave.examples.train_lineworld_pg",
        "Train LineWorld by policy gradient, and show the curve.",
        LineWorldConfig(),
        ENV_ID,
        can_resume=False,
    )
    add("--learning-rate", type=positive_float, metavar="X", help="learning rate of Adam")
    add("--gamma", type=fraction, metavar="X", help="discount per step")
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the reward: a sanity check, success must then fall to about 0")  # fmt: skip
    add("--evaluation-episodes", type=positive_int, metavar="N",
        help="fresh episodes to evaluate the random and the trained policy")  # fmt: skip
    return run_program(parser, argv, LineWorldConfig, train)


def train(config: LineWorldConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate, write the log, and return the run's directory.

    Args:
        config: The settings.
        show: Called after every step that ended an episode.

    Raises:
        EnvWeaveError: The backend or the run directory is not available.
        TrainingInterrupted: Ctrl-C was pressed; the log keeps what was written.
    """
    rng = np.random.default_rng(config.seed)
    learner = ActorCritic(
        2, len(MOVES), rng, learning_rate=config.learning_rate, gamma=config.gamma
    )
    with config.make_vector(ENV_ID, autoreset=True) as venv:
        run_dir = config.open_run_dir("lineworld")
        with RunLog(run_dir, config.logged("LineWorld")) as log:
            run = _LineWorldTraining(config, venv, learner, log, rng)
            try:
                run.evaluate("random", lambda _: rng.choice(MOVES, venv.num_envs))
                run.learn(show)
                run.evaluate("trained", lambda current: MOVES[learner.best(_features(current))])
            except KeyboardInterrupt:
                log.write("interrupted", episodes=run.finished)
                raise TrainingInterrupted(run_dir, run.finished) from None
    return run_dir


@final
class _LineWorldTraining:
    """A training run.

    Episodes are numbered as they begin, and training ends when the first `episodes` of them are
    over. If they were counted as they end, short ones would come first, and a curve would begin
    with the luckiest.
    """

    def __init__(
        self,
        config: LineWorldConfig,
        venv: ew.VectorEnv,
        learner: ActorCritic,
        log: RunLog,
        rng: np.random.Generator,
    ) -> None:
        self._config, self._venv, self._learner = config, venv, learner
        self._log, self._rng = log, rng
        self._earned = np.zeros(config.num_envs)
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._numbers = list(range(1, config.num_envs + 1))
        self._begun = config.num_envs
        self._steps = self._updates = 0
        self.finished = 0

    def evaluate(self, name: str, policy: Policy) -> None:
        """Evaluate a policy on fresh episodes, and log the result."""
        reached = evaluate(self._venv, policy, self._config.evaluation_episodes)
        self._log.write("evaluation", policy=name, **reached.logged())

    def learn(self, show: ShowProgress | None) -> None:
        """Train on as many episodes as the config says."""
        current = self._venv.reset(seed=self._config.seed).current
        while self.finished < self._config.episodes:
            rollout = TrajectoryBatch()
            for _ in range(self._config.rollout_steps):
                before = self.finished
                current = self._step(current, rollout)
                if show is not None and self.finished > before and self._recent:
                    recent = np.mean(self._recent, axis=0)
                    show(self.finished, float(recent[0]), float(recent[1]))
                if self.finished >= self._config.episodes:
                    break
            update = self._learner.update(rollout)
            self._updates += 1
            self._log.write(
                "update",
                update=self._updates,
                steps=self._steps,
                entropy=round(update.entropy, 6),
                value_error=round(update.value_error, 6),
            )

    def _step(self, current: Any, rollout: TrajectoryBatch) -> Any:
        """Step every environment once, and return the observations to act on next."""
        seen = _features(current)
        chosen = self._learner.sample(seen, self._rng)
        batch = self._venv.step(MOVES[chosen])
        rollout.seen.append(seen)
        rollout.chosen.append(chosen)
        rollout.reward.append(self._config.reward_sign * batch.reward)
        rollout.successor.append(_features(batch.successor))
        rollout.bootstrap.append(batch.bootstrap)
        rollout.done.append(batch.done)
        rollout.valid.append(batch.valid)
        self._steps += len(batch)
        self._earned += batch.reward
        for i in np.flatnonzero(batch.done):
            self._finish(int(i), batch[int(i)])
        if batch.needs_reset.any():
            return self._venv.reset(ids=np.flatnonzero(batch.needs_reset).tolist()).current
        return batch.current

    def _finish(self, i: int, result: ew.StepResult[Any]) -> None:
        earned, self._earned[i] = float(self._earned[i]), 0.0
        self._begun += 1
        number, self._numbers[i] = self._numbers[i], self._begun
        if number > self._config.episodes:
            return
        self.finished += 1
        success: float | None = None
        if result.valid:
            success = float(result.metrics["success"])
            self._recent.append((earned, success))
        # A failed episode counts, so that training ends, but has no return and no success.
        self._log.write(
            "episode",
            episode=number,
            success=success,
            truncated=result.truncated,
            length=result.step_index,
            env=i,
            **{"return": round(earned, 6) if result.valid else None},
        )


def _features(current: Any) -> Array:
    """The columns of an observation as one row per environment."""
    return np.stack([current["position"], current["goal"]], axis=1).astype(np.float64)


if __name__ == "__main__":
    sys.exit(main())
