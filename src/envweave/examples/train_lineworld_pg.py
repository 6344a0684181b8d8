"""Train LineWorld by policy gradient: `python -m envweave.examples.train_lineworld_pg`.

Writes `metrics.jsonl` and `metrics.png` into the run's directory, and shows the curve. To check
that learning follows the reward, flip its sign (`--reward-sign -1`): success falls to about 0.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import envweave as ew
from envweave.examples.training import Policy, RunLog, evaluate
from envweave.examples.training.program import (
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

Array: TypeAlias = NDArray[np.float64]


@final
class Network:
    """One hidden layer of tanh units, trained by Adam.

    The last layer is initialized to zero, so an actor starts as the random policy and a critic
    with values of 0.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, rng: np.random.Generator) -> None:
        self._weights = [
            rng.normal(0.0, 1.0 / np.sqrt(inputs), (inputs, hidden)),
            rng.normal(0.0, 0.5, hidden),
            np.zeros((hidden, outputs)),
            np.zeros(outputs),
        ]
        self._means = [np.zeros_like(weight) for weight in self._weights]
        self._squares = [np.zeros_like(weight) for weight in self._weights]
        self._updates = 0

    def __call__(self, inputs: Array) -> Array:
        """Return the outputs for rows of inputs."""
        outputs: Array = self._hidden(inputs) @ self._weights[2] + self._weights[3]
        return outputs

    def descend(self, inputs: Array, slope: Array, learning_rate: float) -> None:
        """Take one step of Adam, where `slope` is the loss's derivative by each output."""
        hidden = self._hidden(inputs)
        before_tanh = (slope @ self._weights[2].T) * (1.0 - hidden**2)
        gradients = [
            inputs.T @ before_tanh,
            before_tanh.sum(axis=0),
            hidden.T @ slope,
            slope.sum(axis=0),
        ]
        self._updates += 1
        for weight, mean, square, gradient in zip(
            self._weights, self._means, self._squares, gradients, strict=True
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            unbiased_mean = mean / (1.0 - 0.9**self._updates)
            unbiased_square = square / (1.0 - 0.999**self._updates)
            weight -= learning_rate * unbiased_mean / (np.sqrt(unbiased_square) + 1e-8)

    def _hidden(self, inputs: Array) -> Array:
        hidden: Array = np.tanh(inputs @ self._weights[0] + self._weights[1])
        return hidden


@final
@dataclass
class TrajectoryBatch:
    """Some steps of many environments, as lists of columns; the learner reads them once."""

    seen: list[Array] = field(default_factory=list)
    chosen: list[NDArray[np.int64]] = field(default_factory=list)
    reward: list[Array] = field(default_factory=list)
    successor: list[Array] = field(default_factory=list)
    bootstrap: list[NDArray[np.bool_]] = field(default_factory=list)
    done: list[NDArray[np.bool_]] = field(default_factory=list)
    valid: list[NDArray[np.bool_]] = field(default_factory=list)


@dataclass(frozen=True)
class Update:
    """The statistics of one update.

    Attributes:
        entropy: How undecided the policy is, in nats; log 2 for a coin.
        value_error: Mean squared error of the critic.
    """

    entropy: float
    value_error: float


@final
class ActorCritic:
    """Trains a policy over a few choices from rollouts, with the critic's values as baseline.

    Uses generalized advantage estimation (GAE), which bootstraps from the value of the true
    successor at a truncation, and never at a termination.
    """

    def __init__(
        self,
        num_features: int,
        num_choices: int,
        rng: np.random.Generator,
        *,
        learning_rate: float,
        gamma: float,
        trace: float = 0.95,
        entropy_bonus: float = 0.01,
        hidden: int = 16,
    ) -> None:
        self._actor = Network(num_features, hidden, num_choices, rng)
        self._critic = Network(num_features, hidden, 1, rng)
        self._learning_rate = learning_rate
        self._gamma = gamma
        self._trace = trace
        self._entropy_bonus = entropy_bonus

    def probabilities(self, features: Array) -> Array:
        """Return the probability of each choice, for rows of features."""
        logits = self._actor(features)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances: Array = weights / weights.sum(axis=1, keepdims=True)
        return chances

    def value(self, features: Array) -> Array:
        """Return the critic's expected return for each row."""
        return self._critic(features)[:, 0]

    def sample(self, features: Array, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a choice for each row."""
        passed = self.probabilities(features).cumsum(axis=1) < rng.random((len(features), 1))
        choices: NDArray[np.int64] = np.minimum(passed.sum(axis=1), passed.shape[1] - 1)
        return choices

    def best(self, features: Array) -> NDArray[np.int64]:
        """Return the likeliest choice for each row."""
        choices: NDArray[np.int64] = self.probabilities(features).argmax(axis=1)
        return choices

    def update(self, rollout: TrajectoryBatch) -> Update:
        """Learn from a rollout: one step for the actor, one for the critic."""
        seen, chosen = np.concatenate(rollout.seen), np.concatenate(rollout.chosen)
        valid = np.concatenate(rollout.valid)
        values = self.value(seen)
        advantage = np.concatenate(self._advantages(rollout, values))
        rows = max(1, int(valid.sum()))

        error = np.where(valid, advantage, 0.0)
        self._critic.descend(seen, -error[:, None] / rows, self._learning_rate)

        weight = np.zeros_like(advantage)
        kept = advantage[valid]
        if len(kept):
            weight[valid] = (kept - kept.mean()) / (kept.std() + 1e-8)
        chances = self.probabilities(seen)
        logs = np.log(chances + 1e-12)
        entropy = -(chances * logs).sum(axis=1)
        taken = np.eye(chances.shape[1])[chosen]
        push = weight[:, None] * (taken - chances)
        spread = -chances * (logs + entropy[:, None])
        slope = -(push + self._entropy_bonus * spread * valid[:, None]) / rows
        self._actor.descend(seen, slope, self._learning_rate)
        return Update(float(entropy.mean()), float((error**2).sum() / rows))

    def _advantages(self, rollout: TrajectoryBatch, values: Array) -> list[Array]:
        following = self.value(np.concatenate(rollout.successor))
        shape = (len(rollout.seen), -1)
        values, following = values.reshape(shape), following.reshape(shape)
        later: Any = 0.0
        advantages: list[Array] = []
        for t in reversed(range(len(rollout.seen))):
            # An invalid step has no reward (NaN), and nothing after an end counts towards it.
            reward = np.where(rollout.valid[t], rollout.reward[t], 0.0)
            target = reward + self._gamma * rollout.bootstrap[t] * following[t]
            goes_on = ~rollout.done[t]
            later = target - values[t] + self._gamma * self._trace * goes_on * later
            advantages.append(later)
        return advantages[::-1]


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
    recorded = config.open_recorded_dir("lineworld")
    with config.make_vector(ENV_ID, autoreset=True, record=recorded) as venv:
        run_dir = recorded or config.open_run_dir("lineworld")
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
