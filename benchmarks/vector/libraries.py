"""The vectors that are compared: envweave's and other libraries', behind one interface."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import itertools
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import envweave as ew
from benchmarks.measurement.machine import children_of, usable_cores
from benchmarks.measurement.processes import NotAvailableError
from benchmarks.vector.environments import Kind

ASYNC, SYNC = "gymnasium AsyncVectorEnv", "gymnasium SyncVectorEnv"
PUFFER, PUFFER_WORKERS = "PufferLib Serial", "PufferLib Multiprocessing"
SUBPROC, ENVPOOL = "stable-baselines3 SubprocVecEnv", "EnvPool (C++)"
SERIAL, PROCESS = "envweave serial", "envweave process"
THREADS, LOOP = "envweave threads", "envweave async"
FIRST_READY, FIRST_READY_PROCESS = "envweave async, first-ready", "envweave process, first-ready"

READY_SIZE = 64
"""How many steps a first-ready vector waits for."""
_ACTION_BATCHES = 64

# PufferLib's spaces make Gymnasium warn about their precision, once per space.
gymnasium.logger.min_level = gymnasium.logger.ERROR


@dataclass(frozen=True, slots=True)
class OpenVector:
    """An open vector.

    Attributes:
        step: Steps it once; returns the number of environment steps.
        close: Closes it and ends its processes.
    """

    step: Callable[[], int]
    close: Callable[[], None]


Open = Callable[..., OpenVector]


@dataclass(frozen=True, slots=True)
class Library:
    """A vector of a library.

    Attributes:
        open: Makes a vector of an environment and a size. For ours, `reads` says whether requests
            and infos are read at every step; other libraries always create them.
        peer: The name in benchmarks/requirements/peers.txt; `None` for our own.
        package: The package whose version is shown.
        settings: Settings to try for a size; the fastest is measured.
    """

    open: Open
    peer: str | None = None
    package: str | None = None
    settings: Callable[[int], list[dict[str, Any]]] = lambda _: [{}]


def _actions(num_envs: int, dtype: Any = np.int64) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, 2, num_envs).astype(dtype) for _ in range(_ACTION_BATCHES)]
    return itertools.cycle(batches)


def _read(batch: Any) -> None:
    """Read what a training loop reads."""
    batch.current, batch.successor, batch.reward, batch.terminated, batch.truncated  # noqa: B018


def _read_all(batch: Any) -> None:
    _read(batch)
    batch.requests, batch.infos  # noqa: B018


def _environment(kind: Kind, mode: str | None) -> Any:
    return kind.with_async if mode == "async" and kind.with_async is not None else kind.plain


def _envweave(
    kind: Kind, num_envs: int, *, reads: bool, backend: str = "inproc", mode: str | None = None
) -> OpenVector:
    venv = ew.make_vector(
        _environment(kind, mode), num_envs=num_envs, backend=backend, mode=mode, autoreset=True
    )
    actions, read = _actions(num_envs), _read_all if reads else _read

    def step() -> int:
        read(venv.step(next(actions)))
        return num_envs

    return _reset(venv, OpenVector(step, venv.close))


def _first_ready(
    kind: Kind, num_envs: int, *, reads: bool, backend: str = "inproc", mode: str | None = None
) -> OpenVector:
    venv = ew.make_vector(
        _environment(kind, mode), num_envs=num_envs, backend=backend, mode=mode, autoreset=True
    )
    actions, read = next(_actions(num_envs)), _read_all if reads else _read

    def step() -> int:
        if not venv.in_flight:
            venv.send(actions)
        batch = venv.recv(min(READY_SIZE, num_envs))
        read(batch)
        venv.send(actions[: len(batch)], ids=batch.ids.tolist())
        return len(batch)

    def close() -> None:
        if venv.in_flight:
            venv.drain()
        venv.close()

    return _reset(venv, OpenVector(step, close))


def _reset(venv: Any, opened: OpenVector) -> OpenVector:
    try:
        venv.reset(seed=0)
    except BaseException:
        opened.close()
        raise
    return opened


def _gymnasium(kind: Kind, num_envs: int, *, name: str) -> OpenVector:
    venv = getattr(gymnasium.vector, name)([kind.plain] * num_envs)
    actions = _actions(num_envs)

    def step() -> int:
        _, _, terminated, truncated, _ = venv.step(next(actions))
        # After the end of an episode, the next call resets the environment instead of stepping it.
        return num_envs - int(np.count_nonzero(terminated | truncated))

    return _reset(venv, OpenVector(step, venv.close))


def _puffer_environment(kind: Kind) -> Any:
    emulation = _import("pufferlib.emulation")
    return functools.partial(emulation.GymnasiumPufferEnv, env_creator=kind.plain)


def _puffer(kind: Kind, num_envs: int) -> OpenVector:
    vector = _import("pufferlib.vector")
    venv = vector.make(_puffer_environment(kind), num_envs=num_envs, backend=vector.Serial)
    actions = _actions(num_envs, np.int32)

    def step() -> int:
        _, _, terminated, truncated, _ = venv.step(next(actions))
        return num_envs - int(np.count_nonzero(terminated | truncated))

    return _reset(venv, OpenVector(step, venv.close))


def _puffer_workers(kind: Kind, num_envs: int, **settings: Any) -> OpenVector:
    vector = _import("pufferlib.vector")
    venv = vector.make(
        _puffer_environment(kind), num_envs=num_envs, backend=vector.Multiprocessing, **settings
    )
    actions = _actions(settings["batch_size"], np.int32)

    def step() -> int:
        venv.send(next(actions))
        _, _, terminated, truncated, _, ids, _ = venv.recv()
        return len(ids) - int(np.count_nonzero(terminated | truncated))

    def close() -> None:
        venv.close()
        for process in venv.processes:
            process.join(5.0)

    return _reset(venv, OpenVector(step, close))


def puffer_settings(num_envs: int) -> list[dict[str, Any]]:
    """Return the settings of PufferLib's workers to try: their number, the batch size, copying."""
    found: list[dict[str, Any]] = []
    for workers in (1, 2, usable_cores(), 2 * usable_cores()):
        if num_envs % workers:
            continue
        for batch in {num_envs, num_envs // 2}:
            fits = batch and batch % (num_envs // workers) == 0
            for zero_copy in (True, False) if fits else ():
                one = {
                    "num_workers": workers,
                    "batch_size": batch,
                    "zero_copy": zero_copy,
                    "overwork": True,
                }
                if one not in found:
                    found.append(one)
    return found


def _subproc(kind: Kind, num_envs: int) -> OpenVector:
    vec_env = _import("stable_baselines3.common.vec_env")
    # By default each worker imports everything again, including torch, and steps no faster.
    venv = vec_env.SubprocVecEnv([kind.plain] * num_envs, start_method="fork")
    actions = _actions(num_envs)

    def step() -> int:
        venv.step(next(actions))
        return num_envs

    venv.seed(0)
    venv.reset()
    return OpenVector(step, venv.close)


def _envpool(kind: Kind, num_envs: int) -> OpenVector:
    if kind.title != "CartPole":
        raise NotAvailableError(
            "EnvPool's environments are written in C++; this one does not exist there"
        )
    venv = _import("envpool").make("CartPole-v1", env_type="gymnasium", num_envs=num_envs)
    actions = _actions(num_envs, np.int32)

    def step() -> int:
        _, _, terminated, truncated, _ = venv.step(next(actions))
        return num_envs - int(np.count_nonzero(terminated | truncated))

    venv.reset()
    return OpenVector(step, venv.close)


@functools.cache
def _import(module: str) -> Any:
    """Import a library in a temporary directory: PufferLib creates a link in the current one."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(temporary)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return importlib.import_module(module)
        finally:
            os.chdir(here)


LIBRARIES: Mapping[str, Library] = {
    SERIAL: Library(functools.partial(_envweave, mode="serial")),
    PROCESS: Library(functools.partial(_envweave, backend="process")),
    THREADS: Library(functools.partial(_envweave, mode="threads")),
    LOOP: Library(functools.partial(_envweave, mode="async")),
    FIRST_READY: Library(functools.partial(_first_ready, mode="async")),
    FIRST_READY_PROCESS: Library(functools.partial(_first_ready, backend="process")),
    SYNC: Library(functools.partial(_gymnasium, name="SyncVectorEnv"), "gymnasium", "gymnasium"),
    ASYNC: Library(functools.partial(_gymnasium, name="AsyncVectorEnv"), "gymnasium", "gymnasium"),
    PUFFER: Library(_puffer, "pufferlib", "pufferlib"),
    PUFFER_WORKERS: Library(_puffer_workers, "pufferlib", "pufferlib", puffer_settings),
    SUBPROC: Library(_subproc, "stable-baselines3", "stable-baselines3"),
    ENVPOOL: Library(_envpool, "envpool", "envpool"),
}


def why_missing(name: str) -> str | None:
    """Return why a library cannot be measured here; `None` if it can be tried."""
    peer = LIBRARIES[name].peer
    if peer is None or peer == "gymnasium":
        return None
    # Written by scripts/peers into its environment: why a library could not be installed, by name.
    installed = Path(sys.prefix) / "peers.json"
    if not installed.exists():
        try:
            found = importlib.util.find_spec(peer.replace("-", "_"))
        except (ImportError, ValueError):
            found = None
        return None if found else "not installed in this environment"
    problems: dict[str, str | None] = json.loads(installed.read_text())
    return problems.get(peer, "not listed in benchmarks/requirements/peers.txt")


def open_vector(
    name: str, kind: Kind, num_envs: int, *, reads: bool, settings: dict[str, Any] | None = None
) -> OpenVector:
    """Open a vector of a library.

    Raises:
        NotAvailableError: The library cannot be measured here.
    """
    missing = why_missing(name)
    if missing is not None:
        raise NotAvailableError(missing)
    library = LIBRARIES[name]
    options = dict(settings or {}) if library.peer else {"reads": reads}
    try:
        return library.open(kind, num_envs, **options)
    except ew.errors.BackendNotFoundError as error:
        raise NotAvailableError(str(error)) from None
    except ImportError as error:
        raise NotAvailableError(f"cannot be imported: {error}") from error


def end_leftover_processes() -> int:
    """End the child processes that a library left running; return their number."""
    ended = 0
    for pid in children_of():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"resource_tracker" in command or b"forkserver" in command:
                continue
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ended += 1
    return ended


@dataclass(frozen=True, slots=True)
class VectorComparison:
    """One comparison.

    Attributes:
        key: Its short name.
        title: What is compared.
        kind: Which environment is stepped.
        num_envs: How many of them.
        ours: Which vector of ours is compared.
        against: Groups of others; ours is compared with the fastest of each group.
        also: Other vectors of ours to measure.
    """

    key: str
    title: str
    kind: str
    num_envs: int
    ours: str
    against: tuple[tuple[str, ...], ...]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All vectors to measure."""
        others = [name for group in self.against for name in group]
        return list(dict.fromkeys([self.ours, *others, *self.also]))


def _in_process(kind: str, what: str, num_envs: int) -> VectorComparison:
    title = f"in this process, {what}"
    key = f"serial-{kind}-{num_envs}"
    return VectorComparison(key, title, kind, num_envs, SERIAL, ((SYNC, PUFFER),))


def _in_workers(kind: str, what: str, num_envs: int, *against: str) -> VectorComparison:
    title = f"in worker processes, {what}"
    key = f"process-{kind}-{num_envs}"
    return VectorComparison(key, title, kind, num_envs, PROCESS, tuple((name,) for name in against))


COMPARISONS: tuple[VectorComparison, ...] = (
    _in_process("own", "own buffer", 256),
    _in_process("own", "own buffer", 64),
    _in_process("fresh", "fresh arrays", 256),
    _in_process("fresh", "fresh arrays", 64),
    _in_process("infos", "with infos", 256),
    _in_process("infos", "with infos", 64),
    VectorComparison(
        "serial-cartpole-256",
        "in this process, CartPole",
        "cartpole",
        256,
        SERIAL,
        ((SYNC, PUFFER), (ENVPOOL,)),
    ),
    VectorComparison(
        "process-own-256",
        "in worker processes, own buffer",
        "own",
        256,
        PROCESS,
        ((ASYNC,), (PUFFER_WORKERS,), (SUBPROC,)),
        (SERIAL,),
    ),
    _in_workers("cartpole", "CartPole", 256, ASYNC, PUFFER_WORKERS, ENVPOOL),
    _in_workers("cpu", "200 µs of computing", 64, SERIAL, ASYNC, PUFFER_WORKERS),
    VectorComparison(
        "async-io-256",
        "on one event loop, 1 ms of waiting",
        "io",
        256,
        LOOP,
        ((ASYNC,),),
        (THREADS,),
    ),
    VectorComparison(
        "stragglers-256",
        "first-ready, 5 % of steps take 50 ms",
        "stragglers",
        256,
        FIRST_READY,
        ((ASYNC,), (LOOP,)),
        (FIRST_READY_PROCESS,),
    ),
)

SCALING_SIZES = (1, 16, 64, 256, 1024)
SCALING = {
    SERIAL: 1024,
    PROCESS: 1024,
    SYNC: 1024,
    PUFFER: 1024,
    PUFFER_WORKERS: 1024,
    ASYNC: 256,
    SUBPROC: 256,
}
"""The largest vector of each, where the size grows: a process per environment has its limits."""

MEMORY = (SERIAL, PROCESS, THREADS, SYNC, PUFFER, PUFFER_WORKERS, ASYNC, SUBPROC)
MEMORY_SIZE = 256
