"""Every environment of the package keeps every promise."""

from __future__ import annotations

from envweave.envs.echo_env import EchoAction, EchoEnvironment
from envweave.examples import (
    CodeFixEnv,
    CounterAction,
    CounterEnv,
    HarvestEnv,
    LineWorldEnv,
    TicTacToeEnv,
)
from envweave.testing import (
    AsyncScriptedEnvironment,
    EnvironmentConformance,
    ScriptedAgents,
    ScriptedEnvironment,
)
from envweave.wrappers import EpisodeStatistics, TimeLimit


class TestCounterEnv(EnvironmentConformance):
    def make_environment(self) -> CounterEnv:
        return CounterEnv(done_at=3)

    def episode(self) -> list[CounterAction]:
        return [CounterAction(delta=1)] * 3


class TestLineWorldEnv(EnvironmentConformance):
    def make_environment(self) -> LineWorldEnv:
        return LineWorldEnv()


class TestCodeFixEnv(EnvironmentConformance):
    def make_environment(self) -> CodeFixEnv:
        return CodeFixEnv()


class TestEchoEnvironment(EnvironmentConformance):
    def make_environment(self) -> TimeLimit:
        return TimeLimit(EchoEnvironment(), max_steps=3)  # by itself it never ends

    def episode(self) -> list[EchoAction]:
        return [EchoAction("a"), EchoAction(""), EchoAction("Hello, World!")]


class TestTicTacToeEnv(EnvironmentConformance):
    def make_environment(self) -> TicTacToeEnv:
        return TicTacToeEnv()


class TestHarvestEnv(EnvironmentConformance):
    def make_environment(self) -> HarvestEnv:
        return HarvestEnv()


class TestScriptedEnvironment(EnvironmentConformance):
    def make_environment(self) -> ScriptedEnvironment:
        return ScriptedEnvironment()


class TestAsyncScriptedEnvironment(EnvironmentConformance):
    def make_environment(self) -> AsyncScriptedEnvironment:
        return AsyncScriptedEnvironment()


class TestScriptedAgents(EnvironmentConformance):
    def make_environment(self) -> ScriptedAgents:
        return ScriptedAgents()


class TestWrappedEnvironment(EnvironmentConformance):
    def make_environment(self) -> EpisodeStatistics:
        return EpisodeStatistics(TimeLimit(LineWorldEnv(), max_steps=5))


class TestWrappedAsyncEnvironment(EnvironmentConformance):
    def make_environment(self) -> EpisodeStatistics:
        return EpisodeStatistics(TimeLimit(AsyncScriptedEnvironment(), max_steps=2))


class TestWrappedAgents(EnvironmentConformance):
    def make_environment(self) -> EpisodeStatistics:
        return EpisodeStatistics(TimeLimit(ScriptedAgents(), max_steps=1))


class PlainGymLike:
    """No subclass of anything: `reset` and `step`, and one buffer written in place."""

    def __init__(self) -> None:
        self._at = [0]

    def reset(self, *, seed=None):
        self._at[0] = 0
        return self._at, {}

    def step(self, action):
        self._at[0] += 1
        return self._at, float(action or 0), self._at[0] == 3, False, {}


class TestPlainGymLike(EnvironmentConformance):
    def make_environment(self) -> PlainGymLike:
        return PlainGymLike()

    def episode(self) -> list[int]:
        return [1, 2, 3]
