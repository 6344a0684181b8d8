"""A policy gradient in numpy: an actor and a critic, each a network with one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

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
