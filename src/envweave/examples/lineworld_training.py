"""Training on LineWorld: the loop between the environments, the learner and the log."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import envweave as ew
from envweave.examples.evaluation import Evaluation, Policy, evaluate
from envweave.examples.plots import draw
from envweave.examples.policy_gradient import ActorCritic, Array, Rollout
from envweave.examples.progress import Show
from envweave.examples.run_log import RunLog, claim_fresh_run_dir, claim_run_dir

MOVES = np.array([-1, 1])
RECENT = 40
"""How many episodes the live figures look back."""


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        num_envs: How many environments are stepped together.
        episodes: How many episodes to learn from.
        seed: Of the worlds and of the learner: the same seed gives the same run.
        run_dir: Where to write; must be new or empty. `None` makes one under `runs/`.
        backend: Where the environments run.
        learning_rate: Of Adam, for the actor and the critic.
        gamma: The discount of a step.
        reward_sign: −1 learns from the reward's opposite, to check that learning follows it.
        rollout_steps: How many steps of each environment an update learns from.
        evaluation_episodes: How many fresh episodes measure a policy.
    """

    num_envs: int = 16
    episodes: int = 400
    seed: int = 0
    run_dir: Path | None = None
    backend: str = "inproc"
    learning_rate: float = 0.01
    gamma: float = 0.99
    reward_sign: int = 1
    rollout_steps: int = 16
    evaluation_episodes: int = 200


@dataclass(frozen=True)
class TrainingResult:
    """What a run reached, and where it is written.

    Attributes:
        config: How it was trained, with the `run_dir` that was chosen.
        metrics: The log.
        picture: The picture of it, or `None` with the reason in `picture_missing`.
        returns: The return of each episode, in the order they began.
        successes: Whether each succeeded, 1 or 0.
        random: What the random policy reaches.
        trained: What the trained policy reaches, always making its likeliest move.
        steps: How many steps were taken in training, over all environments.
        updates: How often the learner was updated.
        duration_s: How long training took, without evaluation and picture.
    """

    config: TrainingConfig
    metrics: Path
    picture: Path | None
    picture_missing: str
    returns: list[float]
    successes: list[float]
    random: Evaluation
    trained: Evaluation
    steps: int
    updates: int
    duration_s: float


class TrainingInterrupted(KeyboardInterrupt):
    """Training was interrupted; what was logged until then is in `run_dir`."""

    def __init__(self, run_dir: Path, episodes: int) -> None:
        super().__init__(f"interrupted after {episodes} episodes; the log is in {run_dir}")
        self.run_dir = run_dir
        self.episodes = episodes


def train(config: TrainingConfig, *, show: Show | None = None) -> TrainingResult:
    """Train, evaluate, and write the log and the picture.

    Args:
        config: How to train.
        show: Told after every step that ended an episode how far the run is.

    Raises:
        EnvWeaveError: The backend or the run directory cannot be had.
        TrainingInterrupted: Ctrl-C came; the log keeps what was written.
    """
    rng = np.random.default_rng(config.seed)
    learner = ActorCritic(
        2, len(MOVES), rng, learning_rate=config.learning_rate, gamma=config.gamma
    )
    with ew.make_vector(
        "lineworld-v0", num_envs=config.num_envs, backend=config.backend, autoreset=True
    ) as venv:
        if config.run_dir is None:
            run_dir = claim_fresh_run_dir(Path("runs"), f"lineworld-seed{config.seed}")
        else:
            run_dir = claim_run_dir(config.run_dir)
        config = dataclasses.replace(config, run_dir=run_dir)
        with RunLog(run_dir) as log:
            log.write("run", version=ew.__version__, **_settings(config))
            run = _Run(config, venv, learner, log, rng)
            try:
                random = run.evaluate("random", lambda _: rng.choice(MOVES, venv.num_envs))
                duration_s = run.learn(show or _show_nothing)
                trained = run.evaluate(
                    "trained", lambda current: MOVES[learner.best(_features(current))]
                )
            except KeyboardInterrupt:
                log.write("interrupted", episodes=run.finished)
                raise TrainingInterrupted(run_dir, run.finished) from None
    picture, missing = _draw(run_dir)
    reached = [run.reached[number] for number in sorted(run.reached)]
    return TrainingResult(
        config=config,
        metrics=log.path,
        picture=picture,
        picture_missing=missing,
        returns=[earned for earned, _ in reached],
        successes=[success for _, success in reached],
        random=random,
        trained=trained,
        steps=run.steps,
        updates=run.updates,
        duration_s=duration_s,
    )


@final
class _Run:
    """A run under way.

    Episodes are numbered as they begin, and training ends when the first so many are over.
    Were they counted as they end, the short ones would come first, and a curve would begin
    with the luckiest.
    """

    def __init__(
        self,
        config: TrainingConfig,
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
        self.reached: dict[int, tuple[float, float]] = {}
        self.finished = self.steps = self.updates = 0

    def evaluate(self, name: str, policy: Policy) -> Evaluation:
        """Measure a policy on fresh episodes, and log it."""
        reached = evaluate(self._venv, policy, self._config.evaluation_episodes)
        self._log.write(
            "evaluation",
            policy=name,
            episodes=reached.episodes,
            success=reached.success,
            **{"return": reached.mean_return},
        )
        return reached

    def learn(self, show: Show) -> float:
        """Learn from as many episodes as the config says; return how long it took."""
        began_s = time.perf_counter()
        current = self._venv.reset(seed=self._config.seed).current
        while self.finished < self._config.episodes:
            rollout = Rollout()
            for _ in range(self._config.rollout_steps):
                before = self.finished
                current = self._step(current, rollout)
                if self.finished > before and self._recent:
                    recent = np.mean(self._recent, axis=0)
                    show(self.finished, float(recent[0]), float(recent[1]))
                if self.finished >= self._config.episodes:
                    break
            update = self._learner.update(rollout)
            self.updates += 1
            self._log.write(
                "update",
                update=self.updates,
                steps=self.steps,
                entropy=round(update.entropy, 6),
                value_error=round(update.value_error, 6),
            )
        return time.perf_counter() - began_s

    def _step(self, current: Any, rollout: Rollout) -> Any:
        """Step every environment once, and return what to act on next."""
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
        self.steps += len(batch)
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
            self.reached[number] = earned, success
            self._recent.append((earned, success))
        # A failed episode counts, so that training ends, but it has no return and no success.
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
    """The columns of an observation as one row an environment."""
    return np.stack([current["position"], current["goal"]], axis=1).astype(np.float64)


def _settings(config: TrainingConfig) -> dict[str, Any]:
    settings = dataclasses.asdict(config)
    del settings["run_dir"]
    return settings


def _draw(run_dir: Path) -> tuple[Path | None, str]:
    try:
        return draw(run_dir), ""
    except ew.errors.MissingExtraError as error:
        return None, str(error)


def _show_nothing(finished: int, mean_return: float, success: float) -> None:
    """Keep silent."""
