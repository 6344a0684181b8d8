"""Environments and backends that break a promise, each in one way."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

import envweave as ew
from envweave.errors import ActionError, ClosedError, ResetNeededError, SeedError
from envweave.examples import CounterAction
from envweave.testing import ScriptedEnvironment
from envweave.types import AgentEnd, EpisodeEnd, NeedAction, StepResult

# Environments that break a promise


@dataclass
class Shown(ew.Observation):
    value: float = 0.0


class Sound(ew.Environment):
    """Breaks nothing; three steps, a draw each."""

    copyable = True

    def reset(self, *, seed: int | None = None) -> Shown:
        self.rng, self.at = random.Random(seed), 0
        return Shown(self.rng.random())

    def step(self, action: CounterAction) -> Shown:
        self.at += 1
        return Shown(self.rng.random(), reward=1.0, done=self.at == 3)


class Raises(Sound):
    def step(self, action: CounterAction) -> Shown:
        raise RuntimeError("broken on purpose")


class GlobalRandomness(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        random.seed(seed)
        self.at = 0
        return Shown(random.random())

    def step(self, action: CounterAction) -> Shown:
        self.at += 1
        return Shown(random.random(), reward=1.0, done=self.at == 3)


class GlobalNumpyRandomness(GlobalRandomness):
    def reset(self, *, seed: int | None = None) -> Shown:
        np.random.seed(seed % 2**32)
        self.at = 0
        return Shown(np.random.random())

    def step(self, action: CounterAction) -> Shown:
        self.at += 1
        return Shown(np.random.random(), reward=1.0, done=self.at == 3)


class DropsTheSeed(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        return super().reset(seed=None)


class RemembersTheLastEpisode(Sound):
    total = 0

    def step(self, action: CounterAction) -> Shown:
        shown = super().step(action)
        self.total += 1
        shown.value = float(self.total)
        return shown


class ShowsWhatItsHintsDeny(Sound):
    def step(self, action: CounterAction) -> Shown:
        shown = super().step(action)
        shown.value = "three"
        return shown


@dataclass
class Wait(ew.Action):
    pass


@dataclass
class Jump(ew.Action):
    height: int = 1


class FailsOnOneKind(Sound):
    """Takes two kinds of actions, and knows only one."""

    def step(self, action: Wait | Jump) -> Shown:
        if isinstance(action, Jump):
            raise NotImplementedError("jumping is not implemented")
        return super().step(action)  # type: ignore[arg-type]


class RefusesOneKind(Sound):
    def step(self, action: Wait | Jump) -> Shown:
        if isinstance(action, Jump):
            raise ActionError("jumping is not allowed")
        return super().step(action)  # type: ignore[arg-type]


class MiscountsItsState(Sound):
    @property
    def state(self) -> ew.State:
        return ew.State(episode_id="mine", step_count=7)


class LeavesAThread(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        self.stop = threading.Event()
        STOPS.append(self.stop)
        Endless(target=self.stop.wait, args=(60.0,), daemon=True).start()
        return super().reset(seed=seed)


class Endless(threading.Thread):
    """A thread that ends only when it is stopped."""

    def join(self, timeout: float | None = None) -> None:
        super().join(None if timeout is None else 0.0)


STOPS: list[threading.Event] = []


# Backends that break a promise: a sound session behind a transport that spoils it


class Breaking:
    """Passes every call on; subclasses break one thing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.interface, self.tasks = inner.interface, inner.tasks

    @property
    def agents(self) -> list[str]:
        return self.inner.agents

    def reset(self, **keywords: Any) -> Any:
        return self.inner.reset(**keywords)

    def step(self, action: Any) -> Any:
        return self.inner.step(action)

    def state(self) -> Any:
        return self.inner.state()

    def snapshot(self) -> Any:
        return self.inner.snapshot()

    def restore(self, point: Any) -> Any:
        return self.inner.restore(point)

    def sibling(self) -> Any:
        return type(self)(self.inner.sibling())

    def close(self) -> None:
        self.inner.close()


class RestartsForks(Breaking):
    """Begins a new episode instead of continuing the one of the snapshot."""

    def restore(self, point: Any) -> Any:
        return self.inner.reset()


class RestoresOnce(Breaking):
    """Continues from a snapshot once; then it is where that episode went."""

    def restore(self, point: Any) -> Any:
        if self.__dict__.setdefault("restored", None) is point:
            return self.inner.reset(seed=5)
        self.restored = point
        return self.inner.restore(point)


class ForgetsWhatForksAreOwed(Breaking):
    def restore(self, point: Any) -> Any:
        result = self.inner.restore(point)
        for need in result.needs:
            need.reward = None
        return result


class ResetsBehindYourBack(Breaking):
    """Continues silently on a fresh episode."""

    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ResetNeededError:
            self.inner.reset()
            return self.inner.step(action)


class ForgetsWhoActs(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result._needs = ()
        return result


class SaysTheEndTwice(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.end is not None:
            result._events = (*result._events, result.end)
        return result


class ShowsTheNextEpisodesFirst(Breaking):
    """What Gymnasium before 1.0 did: the final observation is lost in an autoreset."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.ready is not None:
            result.observation = result.ready.initial_obs
        return result


class WritesIntoOldObservations(Breaking):
    old: Any = None

    def step(self, action: Any) -> Any:
        if self.old is not None:
            self.old.value = -1.0
        result = self.inner.step(action)
        self.old = result.observation
        return result


class ResetsOneStepLate(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.ready is not None:
            result.ready, result._needs = None, ()
        return result


class MergesTheFlags(Breaking):
    """`done` alone: a truncation is reported as a termination."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.terminated, result.truncated = result.done, False
        return result


class PaysFailuresNothing(Breaking):
    """A failure becomes a reward of 0."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if not result.valid:
            result.reward, result.end = 0.0, EpisodeEnd("truncated")
        return result


class TakesAnyAction(Breaking):
    """`{"dleta": 1}` is taken as a default."""

    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ActionError:
            return self.inner.step(CounterAction(delta=0))


class HarmsTheEpisode(Breaking):
    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ActionError:
            self.inner.step(CounterAction(delta=0))
            raise


class FailsOnRefusals(Breaking):
    """An action that the author's `step` refuses ends the episode."""

    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ActionError as error:
            if "refused here" not in str(error):
                raise
            return self.inner.session.fail(error)


class CountsRefusals(Breaking):
    """A refused action is counted as a step."""

    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ActionError:
            self.inner.session.step_index += 1
            raise


class DropsSeeds(Breaking):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        return self.inner.reset(**keywords)


class TakesSeedsNobodyHonours(Breaking):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        try:
            return self.inner.reset(seed=seed, **keywords)
        except SeedError:
            return self.inner.reset(**keywords)


class RepeatsOneSeed(Breaking):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        return self.inner.reset(seed=5 if seed is None else seed, **keywords)


class CrashesOnOptions(Breaking):
    def reset(self, *, options: Any = None, **keywords: Any) -> Any:
        if options is not None:
            raise KeyError("options")
        return self.inner.reset(**keywords)


class WorksAfterClose(Breaking):
    def close(self) -> None:
        pass


class ClosesOnce(Breaking):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise ClosedError("closed already")
        self.closed = True
        self.inner.close()


class LetsAnybodyAct(Breaking):
    def step(self, action: Any) -> Any:
        asked = self.inner.session._agent_states.acting
        spare = next(iter(action.values()), {})
        return self.inner.step({agent: action.get(agent, spare) for agent in asked})


class LosesWhatWasEarnedWaiting(Breaking):
    """A NeedAction carries only the last step's reward."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result._needs = tuple(
            NeedAction(n.observation, n.action_mask, result.reward.get(n.agent_id), n.agent_id)
            for n in result.needs
        )
        return result


class TellsLeaversTwice(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        self.left = getattr(self, "left", ()) + tuple(
            event for event in result._events if isinstance(event, AgentEnd)
        )
        result._events = self.left
        return result


class FlattensAgents(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.reward = sum(reward or 0.0 for reward in result.reward.values())
        return result


class SpoilsParts(Breaking):
    def step(self, action: Any) -> Any:
        result: StepResult[Any] = self.inner.step(action)
        result.info = {**result.info, "reward_parts": {"a": 99.0}}
        return result


class RetriesReset(Breaking):
    """A failing reset is run a second time: the old `except TypeError` way."""

    def reset(self, **keywords: Any) -> Any:
        try:
            return self.inner.reset(**keywords)
        except ew.errors.ResetFailedError:
            self.inner.session.slot.factory = None
            self.inner.session.environment._fail_seeds = frozenset()
            self.inner.reset(**keywords)
            raise


class KeepsWhatFailed(Breaking):
    def step(self, action: Any) -> Any:
        self.inner.session.slot.factory = None
        return self.inner.step(action)


class CountsAnswersAsSteps(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if isinstance(action, ew.ToolResult):
            result.step_index += 1
        return result


class SwallowsLogs(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result._events = ()
        return result


class ScoresWhatIsNotScored(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.reward = result.reward or 0.0
        return result


class BlamesNobody(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.end is not None:
            result.end = EpisodeEnd("truncated")
        return result


class HidesFailedResets(Breaking):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.info.pop("reset_error", None)
        return result


class TakesAnswersNobodyAskedFor(Breaking):
    def step(self, action: Any) -> Any:
        return self.inner.step({} if isinstance(action, ew.ToolResult) else action)


class DropsWhatResetIsGiven(Breaking):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        return self.inner.reset(seed=seed)


class HandsOutWholeTasks(Breaking):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.tasks = ScriptedEnvironment.tasks
