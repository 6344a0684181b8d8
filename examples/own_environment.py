"""An environment of your own: typed actions and observations, a seed, a reward, a state."""

import random
from dataclasses import dataclass
from typing import Annotated

import envweave as ew


@dataclass
class Guess(ew.Action):
    number: Annotated[int, ew.Bounds(1, 100)]


@dataclass
class Hint(ew.Observation):
    hint: str


@dataclass
class GuessState(ew.State):
    tries_left: int = 7


class GuessEnvironment(ew.Environment):
    """Find a number from 1 to 100 in seven tries."""

    def reset(self, *, seed: int | None = None) -> Hint:
        self._secret = random.Random(seed).randint(1, 100)
        self._state = GuessState()
        return Hint("Guess a number from 1 to 100.")

    def step(self, action: Guess) -> Hint:
        self._state.tries_left -= 1
        if action.number == self._secret:
            return Hint("right", reward=1.0, done=True)
        hint = "higher" if action.number < self._secret else "lower"
        return Hint(hint, reward=0.0, done=self._state.tries_left == 0)

    @property
    def state(self) -> GuessState:
        return self._state


with ew.make(GuessEnvironment) as env:
    result, low, high = env.reset(seed=7), 1, 100
    while not result.done:
        middle = (low + high) // 2
        result = env.step(Guess(middle))
        print(middle, result.observation.hint)
        low, high = (middle + 1, high) if result.observation.hint == "higher" else (low, middle - 1)
    print("reward", result.reward, "with", env.state().tries_left, "tries left")
