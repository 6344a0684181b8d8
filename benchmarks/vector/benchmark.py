"""Vectors of environments: envweave, Gymnasium, PufferLib, stable-baselines3 and EnvPool.

    benchmarks/run vector                   everything; about a quarter of an hour
    benchmarks/run vector --quick           less precise; a few minutes
    benchmarks/run vector --only serial     the comparisons with "serial" in their name
    benchmarks/run vector --docs            store the results and write them into the docs
    benchmarks/run vector --no-peers        only with libraries that are installed here

All libraries step the same environment classes in one process, by turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import envweave as ew
from benchmarks.measurement.comparison import (
    Candidate,
    Comparison,
    Rate,
    Settings,
    best,
    contest,
    measure,
    overhead_us,
    ratio,
)
from benchmarks.measurement.machine import describe_machine, usable_cores, weigh
from benchmarks.measurement.processes import ROOT, NotAvailableError
from benchmarks.measurement.program import ComparisonProgram
from benchmarks.vector.environments import EPISODE_STEPS, KINDS, Dataclasses, Kind, Move, OwnBuffer
from benchmarks.vector.libraries import (
    COMPARISONS,
    LIBRARIES,
    MEMORY,
    MEMORY_SIZE,
    PUFFER_WORKERS,
    SCALING,
    SCALING_SIZES,
    OpenVector,
    VectorComparison,
    end_leftover_processes,
    open_vector,
    why_missing,
)
from benchmarks.vector.results import RESULTS

TIMEOUT_S = 60.0
REST_S = 0.6
DIRECT, MAKE = "called directly", "through make"
_PLAIN = ["one", *(row.key for row in COMPARISONS)]
KEYS = [*_PLAIN, *(f"{key}-reads" for key in _PLAIN), "scaling", "memory"]


def measure_all(keys: list[str], settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Run the selected comparisons."""
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "peers": _peers(),
        "one": [],
        "rows": [],
        "scaling": [],
        "memory": [],
    }
    try:
        for reads in (False, True):
            suffix = "-reads" if reads else ""
            if f"one{suffix}" in keys:
                results["one"] += run_single(settings, reads=reads)
            for row in COMPARISONS:
                if f"{row.key}{suffix}" in keys:
                    settings.log(f"{row.key}{suffix}: {', '.join(row.names)}")
                    results["rows"].append(run_comparison(row, settings, reads=reads))
        if "scaling" in keys:
            sizes = SCALING_SIZES[:3] if options.quick else SCALING_SIZES
            results["scaling"] = run_scaling(settings, sizes)
        if "memory" in keys:
            results["memory"] = run_memory(settings)
    finally:
        end_leftover_processes()
    return results


def _peers() -> dict[str, Any]:
    """Return the version of every other library, or why it is missing."""
    found: dict[str, Any] = {}
    for name, library in LIBRARIES.items():
        if library.package is not None:
            problem = why_missing(name)
            version = None if problem else _version(library.package)
            found[name] = {"version": version, "problem": problem}
    return found


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    # Of PufferLib only some modules are installed, without its metadata.
    for word in (ROOT / "benchmarks/requirements/peers.txt").read_text().split():
        if word.startswith(f"{package}=="):
            return word.partition("==")[2]
    return None


@dataclass(slots=True)
class OpenVectors:
    """The open vectors of one comparison."""

    contenders: list[Candidate] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


@contextlib.contextmanager
def deadline(name: str) -> Iterator[None]:
    """Raise `TimeoutError` in a block that takes too long."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"{name} did not finish within {TIMEOUT_S:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def open_vectors(
    names: list[str], kind: Kind, num_envs: int, settings: Settings, *, reads: bool
) -> Iterator[OpenVectors]:
    """Open a vector of each library, and close them again with all their processes."""
    vectors = OpenVectors()
    closing: list[tuple[str, Callable[[], None]]] = []
    try:
        for name in names:
            try:
                with deadline(name):
                    chosen = _fastest_settings(name, kind, num_envs, settings)
                    vector = open_vector(name, kind, num_envs, reads=reads, settings=chosen)
            except NotAvailableError as error:
                vectors.problems[name] = f"not available: {error}"
            except Exception as error:  # noqa: BLE001 - the other libraries are measured
                vectors.problems[name] = f"failed: {describe_error(error)}"
            else:
                if chosen:
                    vectors.settings[name] = chosen
                closing.append((name, vector.close))
                vectors.contenders.append(Candidate(name, vector.step))
        yield vectors
    finally:
        for name, close in closing:
            try:
                with deadline(name):
                    close()
            except Exception as error:  # noqa: BLE001 - its processes are ended below
                settings.log(f"closing {name} failed: {describe_error(error)}")
        ended = end_leftover_processes()
        if ended:
            settings.log(f"ended {ended} leftover processes")


def _fastest_settings(name: str, kind: Kind, num_envs: int, settings: Settings) -> dict[str, Any]:
    tried = LIBRARIES[name].settings(num_envs)
    if len(tried) < 2:
        return tried[0] if tried else {}
    rates: list[tuple[float, dict[str, Any]]] = []
    problem: Exception | None = None
    for one in tried:
        try:
            vector = open_vector(name, kind, num_envs, reads=False, settings=one)
        except NotAvailableError:
            raise
        except Exception as error:  # noqa: BLE001 - the library refuses this setting
            problem = error
            continue
        try:
            measure(Candidate(name, vector.step), settings.seconds / 10)
            rates.append((measure(Candidate(name, vector.step), settings.seconds / 2), one))
        finally:
            vector.close()
    if not rates:
        raise problem or RuntimeError("no setting fits")
    return max(rates, key=lambda pair: pair[0])[1]


def _contest(vectors: OpenVectors, settings: Settings) -> Comparison:
    @contextlib.contextmanager
    def turn(name: str) -> Iterator[None]:
        # PufferLib's workers spin for half a second after their last step and would take the cores
        # from the next library.
        if PUFFER_WORKERS in vectors.settings and len(vectors.contenders) > 1:
            time.sleep(REST_S)
        with deadline(name):
            yield

    outcome = contest(
        vectors.contenders, repeats=settings.repeats, seconds=settings.seconds, guard=turn
    )
    for name, why in outcome.failures.items():
        vectors.problems[name] = f"failed: {why}"
    return outcome


def run_comparison(row: VectorComparison, settings: Settings, *, reads: bool) -> dict[str, Any]:
    """Run one comparison."""
    with open_vectors(row.names, KINDS[row.kind], row.num_envs, settings, reads=reads) as vectors:
        rates = _contest(vectors, settings).rates
    comparisons = []
    for group in row.against:
        peer = best(rates, group)
        found = (
            ratio(rates[row.ours], rates[peer]) if peer is not None and row.ours in rates else None
        )
        comparisons.append(
            {
                "against": list(group),
                "best": peer,
                "ratio": _as_json(found),
            }
        )
    return {
        "key": row.key,
        "title": row.title,
        "environment": KINDS[row.kind].title,
        "num_envs": row.num_envs,
        "reads": reads,
        "ours": row.ours,
        "steps_per_s": {name: _as_json(rates.get(name)) for name in row.names},
        "problems": vectors.problems,
        "settings": vectors.settings,
        "comparisons": comparisons,
    }


def _as_json(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else rate.as_json()


def run_single(settings: Settings, *, reads: bool) -> list[dict[str, Any]]:
    """Compare one environment through `make` with direct calls of its class."""
    fields = {"by": 1}
    cases: list[tuple[str, str, Any, Callable[[Any], Any], Any]] = [
        ("one-tuple", "tuples", OwnBuffer, lambda env: env.step, 1),
        ("one-dataclass", "dataclasses", Dataclasses, lambda env: env.step, Move()),
        (
            "one-dict",
            "dataclasses, the action given as a dict",
            Dataclasses,
            lambda env: lambda action: env.step(Move(**action)),
            fields,
        ),
    ]
    found = []
    for key, title, environment, get_step, action in cases:
        settings.log(f"{key}{' with requests and infos read' if reads else ''}")
        direct = environment()
        with ew.make(environment, autoreset=True) as env:
            outcome = contest(
                [
                    Candidate(DIRECT, _episodes(direct.reset, get_step(direct), action)),
                    Candidate(MAKE, _episodes(env.reset, env.step, action, reads=reads)),
                ],
                repeats=settings.repeats,
                seconds=settings.seconds,
            )
        rates = outcome.rates
        added = overhead_us(rates[DIRECT], rates[MAKE]) if len(rates) == 2 else None
        found.append(
            {
                "key": key,
                "title": title,
                "reads": reads,
                "steps_per_s": {name: _as_json(rates.get(name)) for name in (DIRECT, MAKE)},
                "problems": outcome.failures,
                "overhead_us": _as_json(added),
            }
        )
    return found


def _episodes(
    reset: Callable[[], Any], step: Callable[[Any], Any], action: Any, *, reads: bool = False
) -> Callable[[], int]:
    """Return a function that plays an episode up to its last step but one.

    Both sides are reset by hand, so that both do the same.
    """
    steps = range(EPISODE_STEPS - 1)

    def play() -> int:
        reset()
        for _ in steps:
            step(action)
        return len(steps)

    def play_and_read() -> int:
        reset()
        for _ in steps:
            result = step(action)
            result.requests, result.info  # noqa: B018
        return len(steps)

    return play_and_read if reads else play


def run_scaling(settings: Settings, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Measure every library at each size."""
    found = []
    for num_envs in sizes:
        settings.log(f"scaling: {num_envs} environments")
        names = [name for name, largest in SCALING.items() if num_envs <= largest]
        with open_vectors(names, KINDS["own"], num_envs, settings, reads=False) as vectors:
            rates = _contest(vectors, settings).rates
        found += [
            {
                "library": name,
                "num_envs": num_envs,
                "steps_per_s": _as_json(rates.get(name)),
                "problem": vectors.problems.get(name),
            }
            for name in names
        ]
    return found


def run_memory(settings: Settings) -> list[dict[str, Any]]:
    """Measure the memory of every library, each in a fresh process."""
    found = []
    for name in MEMORY:
        settings.log(f"memory: {name}")
        problem: str | None = None
        size: float | None = None
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.vector.benchmark", name],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            reply = json.loads(done.stdout.splitlines()[-1])
            size, problem = reply["bytes_per_env"], reply["problem"]
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            problem = f"failed: {describe_error(error)}"
        found.append(
            {
                "library": name,
                "num_envs": MEMORY_SIZE,
                "bytes_per_env": size,
                "problem": problem,
            }
        )
    return found


def print_memory(name: str) -> None:
    """Measure the memory of a library in this process, and print it as JSON."""
    size, problem = None, None

    def open_one(num_envs: int) -> OpenVector:
        tried = LIBRARIES[name].settings(num_envs)
        # One worker per core, as is usual.
        usual = max(tried, key=lambda one: one.get("num_workers", 0) == usable_cores())
        vector = open_vector(name, KINDS["own"], num_envs, reads=False, settings=usual)
        vector.step()
        return vector

    try:
        size = weigh(open_one, MEMORY_SIZE)
    except NotAvailableError as error:
        problem = f"not available: {error}"
    except Exception as error:  # noqa: BLE001 - sent to the parent process
        problem = f"failed: {describe_error(error)}"
    finally:
        end_leftover_processes()
    print(f"\n{json.dumps({'bytes_per_env': size, 'problem': problem})}")


def describe_error(error: BaseException) -> str:
    """Return an error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-peers", action="store_true", help="only with libraries that are installed here"
    )


main = ComparisonProgram(
    "vector",
    __doc__,
    KEYS,
    measure_all,
    RESULTS,
    seconds=0.5,
    quick_seconds=0.1,
    add_options=_add_options,
    partial_options=("only", "quick", "no_peers"),
    separate_processes=False,
).main

if __name__ == "__main__":
    print_memory(sys.argv[1])
