"""One environment: its author's code alone, and the same episodes through `make`."""

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
    """Something that takes steps.

    Attributes:
        name: What to call it.
        step: Takes steps, and returns how many.
        prepare: Called before each `step`; the clock stands meanwhile.
        check: Called after each repeat; raises if the steps were no good.
    """

    name: str
    step: Callable[[], int]
    prepare: Callable[[], None] | None = None
    check: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps a second, one figure a repeat."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """The slowest repeat."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The quickest repeat."""
        return max(self.samples)

    @property
    def step_us(self) -> float:
        """How long a step takes, in microseconds."""
        return 1e6 / self.median

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "samples": list(self.samples),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of contenders that were measured in turns.

    Attributes:
        rates: Steps a second, by name.
        failures: Why the others have none, by name.
    """

    rates: dict[str, Rate] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def measure(contender: Candidate, seconds: float, *, steps: int | None = None) -> float:
    """Return steps a second, over `seconds` or over so many `steps`; at least one call."""
    clock, step, prepare = time.perf_counter, contender.step, contender.prepare
    taken, spent_s, wanted = 0, 0.0, steps or 0
    gc.collect()
    if prepare is None:
        began_s = clock()
        while (taken < wanted) if steps else (spent_s < seconds):
            taken += step()
            spent_s = clock() - began_s
    else:
        while (taken < wanted) if steps else (spent_s < seconds):
            prepare()
            began_s = clock()
            taken += step()
            spent_s += clock() - began_s
    if contender.check is not None:
        contender.check()
    return taken / max(spent_s, 1e-9)


def contest(
    contenders: Sequence[Candidate],
    *,
    repeats: int,
    seconds: float,
    steps: int | None = None,
    on_sample: Callable[[str], None] = lambda _: None,
    guard: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Comparison:
    """Measure everyone in turns: A B C, A B C, and so on.

    A turn begins with a few steps that are not counted, so that whatever slept is awake. One that
    raises is out, with the reason, and the others go on.

    Args:
        contenders: Who takes part.
        repeats: How many turns each has.
        seconds: How long a turn is.
        steps: How many steps a turn is, instead.
        on_sample: Called after each turn, with the name of whose it was.
        guard: Entered around each turn, with the name; may raise where one takes too long.
    """
    outcome = Comparison()
    samples: dict[str, list[float]] = {one.name: [] for one in contenders}
    for _ in range(repeats):
        for one in contenders:
            if one.name in outcome.failures:
                continue
            try:
                with guard(one.name):
                    measure(one, seconds / 10, steps=steps and 1)
                    samples[one.name].append(measure(one, seconds, steps=steps))
            except EnvWeaveError as error:
                outcome.failures[one.name] = str(error)
            except Exception as error:  # noqa: BLE001 - whoever it is, the others go on
                outcome.failures[one.name] = format_error(error)
            on_sample(one.name)
    for name, found in samples.items():
        if name not in outcome.failures:
            outcome.rates[name] = Rate(tuple(found))
    return outcome


def ratio(ours: Rate, theirs: Rate) -> Rate:
    """Return how many times as fast `ours` is, turn by turn."""
    return Rate(tuple(a / b for a, b in zip(ours.samples, theirs.samples, strict=True)))


def overhead_us(inner: Rate, outer: Rate) -> Rate:
    """Return by how many microseconds a step of `outer` takes longer, turn by turn."""
    pairs = zip(inner.samples, outer.samples, strict=True)
    return Rate(tuple(1e6 / slow - 1e6 / quick for quick, slow in pairs))


def best(rates: Mapping[str, Rate], names: Sequence[str]) -> str | None:
    """Return who of `names` has the highest median; `None` if nobody has one."""
    found = [name for name in names if name in rates]
    return max(found, key=lambda name: rates[name].median, default=None)


Chooser: TypeAlias = Callable[[StepResult[Any]], Any]
MakeChooser: TypeAlias = Callable[[Spec], Chooser]
"""Makes what chooses actions, from what actions there are."""


@dataclass(frozen=True, slots=True)
class BenchEpisodes:
    """An episode that was played once, and can be played again.

    Attributes:
        began: The keywords its reset was given.
        actions: What was done in it, as the caller passed it.
        admitted: The same, as the author's code was given it.
    """

    began: Mapping[str, Any]
    actions: list[Any] = field(default_factory=list)
    admitted: list[Any] = field(default_factory=list)


@final
class _Listener(Wrapper):
    """Notes what the author's code is asked."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.heard: list[BenchEpisodes] = []

    def reset(self, **kwargs: Any) -> Any:
        self.heard.append(BenchEpisodes(kwargs))
        return super().reset(**kwargs)

    def before_step(self, action: Any) -> Any:
        self.heard[-1].admitted.append(action)
        return action

    def answer(self, result: ToolResult) -> Any:
        self.heard[-1].admitted.append(result)
        return super().answer(result)


@dataclass(frozen=True, slots=True)
class Script:
    """Episodes of one environment, to be played again and again.

    Attributes:
        episodes: In the order they were played; the last one may be unfinished.
        seed: What the first reset was given; `None` if the environment takes no seed.
        by_step: Whether what to do depends on the result before it: there are action masks, tool
            calls, or several agents.
        is_async: Whether the environment's methods are async.
    """

    episodes: list[BenchEpisodes]
    seed: int | None
    by_step: bool
    is_async: bool

    @property
    def steps(self) -> int:
        """How many steps there are in all."""
        return sum(len(one.admitted) for one in self.episodes)


def write_script(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    make_chooser: MakeChooser,
    *,
    seconds: float,
    max_steps: int,
    seed: int,
) -> Script:
    """Play an environment for a while, and return what was played.

    Raises:
        EnvironmentFailure: An episode failed; the message says why.
        EnvWeaveError: The environment cannot be made, or nobody can act in it.
    """
    listener = _Listener(adopt(build(spec, kwargs)))
    given: list[tuple[int, Any]] = []
    with ew.make(
        listener,
        autoreset=True,
        max_episode_steps=spec.max_episode_steps,
        transform=spec.transform,
    ) as env:
        interface = listener.describe()
        taken = seed if "seed" in interface.reset_takes else None
        result: StepResult[Any] = env.reset(seed=taken)
        choose = make_chooser(env.action_spec)
        by_step = env.possible_agents is not None or _asks(result)
        began_s = time.perf_counter()
        while len(given) < max_steps and (not given or time.perf_counter() - began_s < seconds):
            action = choose(result)
            given.append((len(listener.heard) - 1, action))
            result = env.step(action)
            refuse_failed(spec.id, result)
            by_step = by_step or _asks(result)
    for number, action in given:
        listener.heard[number].actions.append(action)
    episodes = [one for one in listener.heard if one.actions]
    return Script(episodes, taken, by_step, interface.is_async)


def _asks(result: StepResult[Any]) -> bool:
    return bool(result.tool_calls) or any(n.action_mask is not None for n in result.needs)


def refuse_failed(env_id: str, result: StepResult[Any]) -> None:
    """Raise if a step is not valid: what fails is not what anybody wants to measure."""
    if not result.valid:
        cause = "no cause was given" if result.end is None else result.end.cause
        raise EnvironmentFailure(f"{env_id!r} failed while it was measured: {cause}")


@final
class SoloBench:
    """The author's code, called by nobody but us.

    Attributes:
        reset_s: How long its resets have taken.
        steps: How many steps it has taken.
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

    def contender(self, name: str) -> Candidate:
        """Return what plays the script once a call."""
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
    """Return what plays the script once a call, through an `Env` made with `autoreset`.

    Args:
        name: What to call it.
        env: Where to play.
        script: What to play.
        reads: Whether each result's requests and info are looked at.
    """
    step = env.step
    # A pair each, as the author's code alone is called, so that both loops cost the same.
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
            result.requests  # noqa: B018 - looking at them makes them
            result.info  # noqa: B018
        last[:] = [result]
        return len(turns)

    return Candidate(
        name,
        play_and_read if reads else play,
        check=lambda: refuse_failed(env.id, last[0]),
    )
