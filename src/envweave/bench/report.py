"""Everything `envweave bench` measures, in order, and its report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import envweave as ew
from envweave.bench.memory import describe_machine, usable_cores, weigh_in_process
from envweave.bench.solo import (
    Candidate,
    MakeChooser,
    Rate,
    Script,
    SoloBench,
    contest,
    overhead_us,
    through_make,
    write_script,
)
from envweave.bench.vectors import VectorVariant, list_variants, open_vector
from envweave.errors import EnvWeaveError, OptionError, format_error
from envweave.registry import EnvSpec

ALONE, THROUGH, READ = "the author's code alone", "through make", "requests and info read too"
ENVWEAVE = "envweave"
"""The part of a step that `make` adds."""

_LONGEST_TICK_S = 2.0
"""A vector that steps its environments in turn is skipped if that takes longer than this."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure, and for how long.

    Attributes:
        env_id: The environment.
        kwargs: Keyword arguments of its constructor.
        sizes: Numbers of environments in a vector.
        backend: The only backend to measure; default: all that apply.
        mode: The only mode of a vector to measure.
        seconds: Duration of a turn.
        steps: Number of steps of a turn, instead of a duration.
        repeats: Number of turns of each candidate.
        seed: Random seed.
        memory: Whether to measure the memory of an environment, in separate processes.
    """

    env_id: str
    kwargs: Mapping[str, Any]
    sizes: Sequence[int] = (16, 64)
    backend: str | None = None
    mode: str | None = None
    seconds: float = 0.2
    steps: int | None = None
    repeats: int = 3
    seed: int = 0
    memory: bool = True


@dataclass(frozen=True, slots=True)
class SoloFigures:
    """How fast one environment is.

    Attributes:
        rates: Steps per second: of the author's code alone, through `make`, and with requests and
            info read.
        failures: Why a candidate has no rate.
        overhead_us: What `make` adds to a step, in microseconds.
        parts_us: Where the time of a step goes, in microseconds.
        mean_length: Mean length of the episodes played; `None` if none ended.
    """

    rates: dict[str, Rate]
    failures: dict[str, str]
    overhead_us: Rate | None
    parts_us: dict[str, float]
    mean_length: float | None

    @property
    def is_overhead_within_noise(self) -> bool:
        """Whether some repeat was no slower through `make` than without it."""
        return self.overhead_us is not None and self.overhead_us.low <= 0


@dataclass(frozen=True, slots=True)
class VectorFigures:
    """How fast one vector is.

    Attributes:
        way: How it runs.
        num_envs: Number of environments.
        rate: Steps per second, over all of them.
        problem: Why it has no rate.
        env_bytes: Memory per environment, with its share of workers; `None` if unknown.
    """

    way: VectorVariant
    num_envs: int
    rate: Rate | None = None
    problem: str | None = None
    env_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a benchmark."""

    plan: BenchPlan
    machine: dict[str, Any]
    solo: SoloFigures
    vectors: list[VectorFigures]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        plan, solo = self.plan, self.solo
        return {
            "id": plan.env_id,
            "kwargs": dict(plan.kwargs),
            "seed": plan.seed,
            "repeats": plan.repeats,
            "machine": self.machine,
            "one": {
                "steps_per_s": {name: rate.as_json() for name, rate in solo.rates.items()},
                "failures": solo.failures,
                "overhead_us": None if solo.overhead_us is None else solo.overhead_us.as_json(),
                "parts_us": solo.parts_us,
                "mean_episode_length": solo.mean_length,
            },
            "vectors": [
                {
                    "backend": one.way.backend,
                    "mode": one.way.mode,
                    "num_envs": one.num_envs,
                    "steps_per_s": None if one.rate is None else one.rate.as_json(),
                    "problem": one.problem,
                    "bytes_per_env": one.env_bytes,
                }
                for one in self.vectors
            ],
        }


def rehearse(plan: BenchPlan, make_chooser: MakeChooser) -> Script:
    """Play the environment for a moment, and return the episodes that `measure_all` replays.

    Raises:
        EnvironmentFailure: An episode failed.
        EnvWeaveError: The environment cannot be made, or no action can be chosen.
    """
    return write_script(
        ew.spec(plan.env_id),
        plan.kwargs,
        make_chooser,
        seconds=plan.seconds,
        max_steps=2000,
        seed=plan.seed,
    )


def count_parts(plan: BenchPlan, script: Script) -> int:
    """Return how many times `measure_all` reports progress."""
    ways = _ways(plan, script)
    return plan.repeats * 3 + len(plan.sizes) * len(ways) * (plan.repeats + plan.memory)


def measure_all(
    plan: BenchPlan,
    script: Script,
    make_chooser: MakeChooser,
    on_part: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Measure an environment in every way that applies, or in the one that the plan names.

    Args:
        plan: What to measure.
        script: The episodes to play with one environment.
        make_chooser: Makes choosers of actions for vectors.
        on_part: Called after each part, with its name.

    Raises:
        EnvWeaveError: The way that the plan names is not possible.
    """
    spec = ew.spec(plan.env_id)
    solo = _measure_solo(plan, spec, script, on_part)
    vectors: list[VectorFigures] = []
    step_s = max((1 / rate.median for rate in solo.rates.values()), default=0.0)
    for num_envs in plan.sizes:
        vectors += _measure_vectors(plan, spec, script, num_envs, make_chooser, step_s, on_part)
    is_restricted = plan.backend is not None or plan.mode is not None
    if is_restricted and all(one.rate is None for one in vectors):
        raise OptionError(f"{plan.env_id!r} cannot be measured this way: {vectors[0].problem}")
    versions = ("gymnasium",) if plan.env_id.startswith("gym://") else ()
    return BenchReport(plan, describe_machine(versions), solo, vectors)


def _ways(plan: BenchPlan, script: Script) -> list[VectorVariant]:
    return list_variants(
        plan.env_id, is_async=script.is_async, backend=plan.backend, mode=plan.mode
    )


def _measure_solo(
    plan: BenchPlan, spec: EnvSpec, script: Script, on_part: Callable[[str], None]
) -> SoloFigures:
    backend = plan.backend or "inproc"
    with contextlib.ExitStack() as stack:
        alone = SoloBench(spec, plan.kwargs, script)
        stack.callback(alone.close)
        envs = [
            stack.enter_context(
                ew.make(plan.env_id, backend=backend, autoreset=True, kwargs=plan.kwargs)
            )
            for _ in range(2)
        ]
        found = contest(
            [
                alone.candidate(ALONE),
                through_make(THROUGH, envs[0], script),
                through_make(READ, envs[1], script, reads=True),
            ],
            repeats=plan.repeats,
            seconds=plan.seconds,
            steps=plan.steps,
            on_sample=on_part,
        )
        reset_us = alone.reset_s / max(alone.steps, 1) * 1e6
    rates = found.rates
    overhead, parts = None, {}
    if ALONE in rates:
        parts["reset() of the environment"] = reset_us
        parts["step() of the environment"] = max(0.0, rates[ALONE].step_us - reset_us)
        if THROUGH in rates:
            overhead = overhead_us(rates[ALONE], rates[THROUGH])
            parts[ENVWEAVE] = max(0.0, rates[THROUGH].step_us - rates[ALONE].step_us)
    return SoloFigures(rates, found.failures, overhead, parts, script.mean_length)


def _measure_vectors(
    plan: BenchPlan,
    spec: EnvSpec,
    script: Script,
    num_envs: int,
    make_chooser: MakeChooser,
    step_s: float,
    on_part: Callable[[str], None],
) -> Iterator[VectorFigures]:
    ways, problems = _ways(plan, script), dict[str, str]()
    candidates: list[Candidate] = []
    with contextlib.ExitStack() as stack:
        for way in ways:
            expected_s = _expected_tick_s(way, num_envs, step_s)
            if plan.mode is None and expected_s > _LONGEST_TICK_S:
                problems[way.name] = (
                    f"skipped: stepping {num_envs} would take about {expected_s:.0f} s"
                )
                continue
            try:
                opened = open_vector(spec, plan.kwargs, way, num_envs, seed=script.seed)
                stack.callback(opened.close)
                candidates.append(opened.candidate(way.name, make_chooser, by_step=script.by_step))
            except EnvWeaveError as error:
                problems[way.name] = str(error)
            except Exception as error:  # noqa: BLE001 - another way may still work
                problems[way.name] = format_error(error)
        found = contest(
            candidates,
            repeats=plan.repeats,
            seconds=plan.seconds,
            steps=plan.steps,
            on_sample=lambda name: on_part(f"{num_envs} {name}"),
        )
    for way in ways:
        figures = VectorFigures(
            way,
            num_envs,
            found.rates.get(way.name),
            problems.get(way.name) or found.failures.get(way.name),
        )
        if plan.memory and figures.rate is not None:
            weight = weigh_in_process(_request(plan, way, num_envs, script.seed))
            figures = dataclasses.replace(figures, env_bytes=weight)
        if plan.memory:
            on_part(f"memory, {num_envs} {way.name}")
        yield figures


def _request(
    plan: BenchPlan, way: VectorVariant, num_envs: int, seed: int | None
) -> dict[str, Any]:
    return {
        "id": plan.env_id,
        "kwargs": dict(plan.kwargs),
        "backend": way.backend,
        "mode": way.mode,
        "num_envs": num_envs,
        "seed": seed,
    }


def _expected_tick_s(way: VectorVariant, num_envs: int, step_s: float) -> float:
    """Return how long one step of all takes if the environments step in turn."""
    if way.name in ("inproc serial", "gymnasium sync"):
        return num_envs * step_s
    return num_envs * step_s / usable_cores() if way.name == "process" else 0.0
