"""Timing, and the solo benchmark: the author's code alone, and the same episodes through `make`.

`contest` measures candidates in turns, so that they share whatever else the machine does.
"""

from __future__ import annotations

import gc
import inspect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import envweave as ew
from envweave.adapters import adopt
from envweave.codec import Spec
from envweave.environment import Environment
from envweave.errors import EnvironmentFailure, EnvWeaveError, format_error
from envweave.registry import EnvSpec, build
from envweave.session import PrivateLoop
from envweave.types import StepResult, ToolResult
from envweave.wrappers import Wrapper


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that takes steps and is measured.

    Attributes:
        name: Its name in the results.
        step: Takes steps and returns how many.
        prepare: Called before each `step`, outside the measured time.
        check: Called after each repeat; raises if the steps were not valid.
    """

    name: str
    step: Callable[[], int]
    prepare: Callable[[], None] | None = None
    check: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps per second, one sample per repeat."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """The slowest repeat."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The fastest repeat."""
        return max(self.samples)

    @property
    def step_us(self) -> float:
        """Duration of a step, in microseconds."""
        return 1e6 / self.median

    def as_json(self) -> dict[str, Any]:
        """Return the samples and their statistics as plain data."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "samples": list(self.samples),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of candidates that were measured in turns.

    Attributes:
        rates: Steps per second, by name.
        failures: Why the others have no rate, by name.
    """

    rates: dict[str, Rate] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def measure(candidate: Candidate, seconds: float, *, steps: int | None = None) -> float:
    """Return steps per second, over `seconds` or over `steps` steps; at least one call."""
    clock, step, prepare = time.perf_counter, candidate.step, candidate.prepare
    taken, spent_s, target = 0, 0.0, steps or 0
    gc.collect()
    if prepare is None:
        began_s = clock()
        while (taken < target) if steps else (spent_s < seconds):
            taken += step()
            spent_s = clock() - began_s
    else:
        while (taken < target) if steps else (spent_s < seconds):
            prepare()
            began_s = clock()
            taken += step()
            spent_s += clock() - began_s
    if candidate.check is not None:
        candidate.check()
    return taken / max(spent_s, 1e-9)


def contest(
    candidates: Sequence[Candidate],
    *,
    repeats: int,
    seconds: float,
    steps: int | None = None,
    on_sample: Callable[[str], None] = lambda _: None,
    guard: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Comparison:
    """Measure candidates in turns: A B C, A B C, and so on.

    A turn begins with a few steps that are not counted, as a warm-up. A candidate that raises is
    dropped with the reason, and the others continue.

    Args:
        candidates: The candidates.
        repeats: Number of turns of each.
        seconds: Duration of a turn.
        steps: Number of steps of a turn, instead of a duration.
        on_sample: Called after each turn, with the name of the candidate.
        guard: Entered around each turn, with the name; may raise if a turn takes too long.
    """
    outcome = Comparison()
    samples: dict[str, list[float]] = {one.name: [] for one in candidates}
    for _ in range(repeats):
        for one in candidates:
            if one.name in outcome.failures:
                continue
            try:
                with guard(one.name):
                    measure(one, seconds / 10, steps=steps and 1)
                    samples[one.name].append(measure(one, seconds, steps=steps))
            except EnvWeaveError as error:
                outcome.failures[one.name] = str(error)
            except Exception as error:  # noqa: BLE001 - the others continue
                outcome.failures[one.name] = format_error(error)
            on_sample(one.name)
    for name, found in samples.items():
        if name not in outcome.failures:
            outcome.rates[name] = Rate(tuple(found))
    return outcome


def ratio(ours: Rate, theirs: Rate) -> Rate:
    """Return the speed of `ours` relative to `theirs`, turn by turn."""
    return Rate(tuple(a / b for a, b in zip(ours.samples, theirs.samples, strict=True)))


def overhead_us(inner: Rate, outer: Rate) -> Rate:
    """Return how many microseconds longer a step of `outer` takes, turn by turn."""
    pairs = zip(inner.samples, outer.samples, strict=True)
    return Rate(tuple(1e6 / slow - 1e6 / quick for quick, slow in pairs))


def best(rates: Mapping[str, Rate], names: Sequence[str]) -> str | None:
    """Return which of `names` has the highest median; `None` if none has a rate."""
    found = [name for name in names if name in rates]
    return max(found, key=lambda name: rates[name].median, default=None)


Chooser: TypeAlias = Callable[[StepResult[Any]], Any]
MakeChooser: TypeAlias = Callable[[Spec], Chooser]
"""Makes a chooser of actions from the action spec."""


@dataclass(frozen=True, slots=True)
class BenchEpisodes:
    """A recorded episode, to be replayed.

    Attributes:
        began: The keyword arguments of its reset.
        actions: Its actions, as the caller passed them.
        admitted: The same actions, as the author's code received them.
    """

    began: Mapping[str, Any]
    actions: list[Any] = field(default_factory=list)
    admitted: list[Any] = field(default_factory=list)


@final
class _EpisodeRecorder(Wrapper):
    """Records the resets and actions that the author's code receives."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.episodes: list[BenchEpisodes] = []

    def reset(self, **kwargs: Any) -> Any:
        self.episodes.append(BenchEpisodes(kwargs))
        return super().reset(**kwargs)

    def before_step(self, action: Any) -> Any:
        self.episodes[-1].admitted.append(action)
        return action

    def answer(self, result: ToolResult) -> Any:
        self.episodes[-1].admitted.append(result)
        return super().answer(result)


@dataclass(frozen=True, slots=True)
class Script:
    """Recorded episodes of one environment, to be replayed.

    Attributes:
        episodes: In the order they were played; the last one may be unfinished.
        seed: The seed of the first reset; `None` if the environment takes no seed.
        by_step: Whether actions depend on the result before them, because of action masks, tool
            calls or several agents.
        is_async: Whether the environment's methods are async.
    """

    episodes: list[BenchEpisodes]
    seed: int | None
    by_step: bool
    is_async: bool

    @property
    def steps(self) -> int:
        """Total number of steps."""
        return sum(len(one.admitted) for one in self.episodes)

    @property
    def mean_length(self) -> float | None:
        """Mean number of steps of the episodes that ended; `None` if none did."""
        ended = [len(one.admitted) for one in self.episodes[:-1]]
        return statistics.mean(ended) if ended else None


def write_script(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    make_chooser: MakeChooser,
    *,
    seconds: float,
    max_steps: int,
    seed: int,
) -> Script:
    """Play an environment for a while, and return the recorded episodes.

    Raises:
        EnvironmentFailure: An episode failed; the message says why.
        EnvWeaveError: The environment cannot be made, or no action can be chosen.
    """
    recorder = _EpisodeRecorder(adopt(build(spec, kwargs)))
    chosen: list[tuple[int, Any]] = []
    with ew.make(
        recorder,
        autoreset=True,
        max_episode_steps=spec.max_episode_steps,
        transform=spec.transform,
    ) as env:
        interface = recorder.describe()
        taken = seed if "seed" in interface.reset_takes else None
        result: StepResult[Any] = env.reset(seed=taken)
        choose = make_chooser(env.action_spec)
        by_step = env.possible_agents is not None or _constrains_action(result)
        began_s = time.perf_counter()
        while len(chosen) < max_steps and (not chosen or time.perf_counter() - began_s < seconds):
            action = choose(result)
            chosen.append((len(recorder.episodes) - 1, action))
            result = env.step(action)
            refuse_failed(spec.id, result)
            by_step = by_step or _constrains_action(result)
    for number, action in chosen:
        recorder.episodes[number].actions.append(action)
    episodes = [one for one in recorder.episodes if one.actions]
    return Script(episodes, taken, by_step, interface.is_async)


def _constrains_action(result: StepResult[Any]) -> bool:
    return bool(result.tool_calls) or any(n.action_mask is not None for n in result.needs)


def refuse_failed(env_id: str, result: StepResult[Any]) -> None:
    """Raise if a step is not valid: the speed of failures is of no interest."""
    if not result.valid:
        cause = "unknown cause" if result.end is None else result.end.cause
        raise EnvironmentFailure(f"{env_id!r} failed while it was measured: {cause}")


@final
class SoloBench:
    """The author's code, called without a session around it.

    Attributes:
        reset_s: Total duration of its resets.
        steps: Total number of its steps.
    """

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any], script: Script) -> None:
        self._environment = adopt(build(spec, kwargs))
        is_async = self._environment.describe().is_async
        self._loop = PrivateLoop() if is_async else None
        step, answer = self._environment.step, self._environment.answer
        self._turns = [
            (
                one.began,
                [(answer if isinstance(a, ToolResult) else step, a) for a in one.admitted],
            )
            for one in script.episodes
        ]
        self._taken = script.steps
        self.reset_s = 0.0
        self.steps = 0

    def candidate(self, name: str) -> Candidate:
        """Return a candidate that plays the script once per call."""
        return Candidate(name, self._play if self._loop is None else self._play_on_loop)

    def _play(self) -> int:
        clock, reset = time.perf_counter, self._environment.reset
        for began, turns in self._turns:
            start_s = clock()
            reset(**began)
            self.reset_s += clock() - start_s
            for function, argument in turns:
                function(argument)
        self.steps += self._taken
        return self._taken

    def _play_on_loop(self) -> int:
        assert self._loop is not None
        taken: int = self._loop.run(self._play_async())
        return taken

    async def _play_async(self) -> int:
        clock, reset = time.perf_counter, self._environment.reset
        for began, turns in self._turns:
            start_s = clock()
            value = reset(**began)
            if inspect.isawaitable(value):
                await value
            self.reset_s += clock() - start_s
            for function, argument in turns:
                value = function(argument)
                if inspect.isawaitable(value):
                    await value
        self.steps += self._taken
        return self._taken

    def close(self) -> None:
        """Close the environment."""
        closing = self._environment.close()
        if self._loop is not None:
            if inspect.iscoroutine(closing):
                self._loop.run(closing)
            self._loop.close()


def through_make(name: str, env: ew.Env, script: Script, *, reads: bool = False) -> Candidate:
    """Return a candidate that plays the script once per call, on an `Env` with `autoreset`.

    Args:
        name: Its name in the results.
        env: The environment to play.
        script: The episodes to play.
        reads: Whether the requests and info of each result are read.
    """
    step = env.step
    # Pairs, as in the loop around the author's code, so that both loops cost the same.
    turns = [(step, action) for one in script.episodes for action in one.actions]
    last: list[StepResult[Any]] = []

    def play() -> int:
        env.reset(seed=script.seed)
        for function, argument in turns:
            result = function(argument)
        last[:] = [result]
        return len(turns)

    def play_and_read() -> int:
        env.reset(seed=script.seed)
        for function, argument in turns:
            result = function(argument)
            result.requests  # noqa: B018 - created when read
            result.info  # noqa: B018
        last[:] = [result]
        return len(turns)

    return Candidate(
        name,
        play_and_read if reads else play,
        check=lambda: refuse_failed(env.id, last[0]),
    )
