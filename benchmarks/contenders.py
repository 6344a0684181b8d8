"""Everyone who takes part: envweave's vectors and those of its peers, behind one small face."""

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
from ordered import NotAvailableError

import envweave as ew
from envs import Kind
from envweave.bench.memory import children_of, usable_cores

ASYNC, SYNC = "gymnasium AsyncVectorEnv", "gymnasium SyncVectorEnv"
PUFFER, PUFFER_WORKERS = "PufferLib Serial", "PufferLib Multiprocessing"
SUBPROC, ENVPOOL = "stable-baselines3 SubprocVecEnv", "EnvPool (C++)"
SERIAL, PROCESS = "envweave serial", "envweave process"
THREADS, LOOP = "envweave threads", "envweave async"
FIRST, FIRST_PROCESS = "envweave async, first-ready", "envweave process, first-ready"

READY = 64
"""How many steps a first-ready vector waits for."""
_DRAWN = 64

# PufferLib's spaces make Gymnasium warn about their precision, once a space.
gymnasium.logger.min_level = gymnasium.logger.ERROR


@dataclass(frozen=True, slots=True)
class Opened:
    """A vector that takes steps.

    Attributes:
        step: Steps it once; returns how many steps of environments that were.
        close: Ends it and its processes.
    """

    step: Callable[[], int]
    close: Callable[[], None]


Open = Callable[..., Opened]


@dataclass(frozen=True, slots=True)
class Entrant:
    """One who may take part.

    Attributes:
        open: Makes a vector, of a kind and a size. Ours are told `reads`: whether requests and
            infos are looked at, which peers make in any case.
        peer: The name in benchmarks/peers.txt; `None` for our own.
        package: Whose version counts.
        settings: What to try, by size; the quickest takes part.
    """

    open: Open
    peer: str | None = None
    package: str | None = None
    settings: Callable[[int], list[dict[str, Any]]] = lambda _: [{}]


def _actions(num_envs: int, dtype: Any = np.int64) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, 2, num_envs).astype(dtype) for _ in range(_DRAWN)]
    return itertools.cycle(drawn)


def _look(batch: Any) -> None:
    """Read what a learner reads."""
    batch.current, batch.successor, batch.reward, batch.terminated, batch.truncated  # noqa: B018


def _look_at_all(batch: Any) -> None:
    _look(batch)
    batch.requests, batch.infos  # noqa: B018


def _ours(
    kind: Kind, num_envs: int, *, reads: bool, backend: str = "inproc", mode: str | None = None
) -> Opened:
    made = kind.awaited if mode == "async" and kind.awaited is not None else kind.plain
    venv = ew.make_vector(made, num_envs=num_envs, backend=backend, mode=mode, autoreset=True)
    actions, look = _actions(num_envs), _look_at_all if reads else _look

    def step() -> int:
        look(venv.step(next(actions)))
        return num_envs

    return _begun(venv, Opened(step, venv.close))


def _first_ready(
    kind: Kind, num_envs: int, *, reads: bool, backend: str = "inproc", mode: str | None = None
) -> Opened:
    made = kind.awaited if mode == "async" and kind.awaited is not None else kind.plain
    venv = ew.make_vector(made, num_envs=num_envs, backend=backend, mode=mode, autoreset=True)
    actions, look = next(_actions(num_envs)), _look_at_all if reads else _look

    def step() -> int:
        if not venv.in_flight:
            venv.send(actions)
        batch = venv.recv(min(READY, num_envs))
        look(batch)
        venv.send(actions[: len(batch)], ids=batch.ids.tolist())
        return len(batch)

    def close() -> None:
        if venv.in_flight:
            venv.drain()
        venv.close()

    return _begun(venv, Opened(step, close))


def _begun(venv: Any, opened: Opened) -> Opened:
    try:
        venv.reset(seed=0)
    except BaseException:
        opened.close()
        raise
    return opened


def _gymnasium(kind: Kind, num_envs: int, *, name: str) -> Opened:
    venv = getattr(gymnasium.vector, name)([kind.plain] * num_envs)
    actions = _actions(num_envs)

    def step() -> int:
        _, _, terminated, truncated, _ = venv.step(next(actions))
        # Where an episode ends, the next call resets and takes no step.
        return num_envs - int(np.count_nonzero(terminated | truncated))

    return _begun(venv, Opened(step, venv.close))


def _puffer_environment(kind: Kind) -> Any:
    emulation = _imported("pufferlib.emulation")
    return functools.partial(emulation.GymnasiumPufferEnv, env_creator=kind.plain)


def _puffer(kind: Kind, num_envs: int) -> Opened:
    vector = _imported("pufferlib.vector")
    venv = vector.make(_puffer_environment(kind), num_envs=num_envs, backend=vector.Serial)
    actions = _actions(num_envs, np.int32)

    def step() -> int:
        _, _, terminated, truncated, _ = venv.step(next(actions))
        return num_envs - int(np.count_nonzero(terminated | truncated))

    return _begun(venv, Opened(step, venv.close))


def _puffer_workers(kind: Kind, num_envs: int, **settings: Any) -> Opened:
    vector = _imported("pufferlib.vector")
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

    return _begun(venv, Opened(step, close))


def puffer_settings(num_envs: int) -> list[dict[str, Any]]:
    """What to try of PufferLib's workers: how many, how many rows a call, copied or not."""
    tried = []
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
                if one not in tried:
                    tried.append(one)
    return tried


def _subproc(kind: Kind, num_envs: int) -> Opened:
    vec_env = _imported("stable_baselines3.common.vec_env")
    # Its default imports everything anew in each worker, torch included, and steps no faster.
    venv = vec_env.SubprocVecEnv([kind.plain] * num_envs, start_method="fork")
    actions = _actions(num_envs)

    def step() -> int:
        venv.step(next(actions))
        return num_envs

    venv.seed(0)
    venv.reset()
    return Opened(step, venv.close)


def _envpool(kind: Kind, num_envs: int) -> Opened:
    if kind.title != "CartPole":
        raise NotAvailableError(
            "its environments are written in C++, and this one is not among them"
        )
    venv = _imported("envpool").make("CartPole-v1", env_type="gymnasium", num_envs=num_envs)
    actions = _actions(num_envs, np.int32)

    def step() -> int:
        _, _, terminated, truncated, _ = venv.step(next(actions))
        return num_envs - int(np.count_nonzero(terminated | truncated))

    venv.reset()
    return Opened(step, venv.close)


@functools.cache
def _imported(module: str) -> Any:
    """Import a peer. PufferLib makes a link in the current directory, so that is another one."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as elsewhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(elsewhere)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return importlib.import_module(module)
        finally:
            os.chdir(here)


ENTRANTS: Mapping[str, Entrant] = {
    SERIAL: Entrant(functools.partial(_ours, mode="serial")),
    PROCESS: Entrant(functools.partial(_ours, backend="process")),
    THREADS: Entrant(functools.partial(_ours, mode="threads")),
    LOOP: Entrant(functools.partial(_ours, mode="async")),
    FIRST: Entrant(functools.partial(_first_ready, mode="async")),
    FIRST_PROCESS: Entrant(functools.partial(_first_ready, backend="process")),
    SYNC: Entrant(functools.partial(_gymnasium, name="SyncVectorEnv"), "gymnasium", "gymnasium"),
    ASYNC: Entrant(functools.partial(_gymnasium, name="AsyncVectorEnv"), "gymnasium", "gymnasium"),
    PUFFER: Entrant(_puffer, "pufferlib", "pufferlib"),
    PUFFER_WORKERS: Entrant(_puffer_workers, "pufferlib", "pufferlib", puffer_settings),
    SUBPROC: Entrant(_subproc, "stable-baselines3", "stable-baselines3"),
    ENVPOOL: Entrant(_envpool, "envpool", "envpool"),
}


def why_missing(name: str) -> str | None:
    """Return why a peer cannot take part here; `None` if it can be tried."""
    peer = ENTRANTS[name].peer
    noted = Path(sys.prefix) / "peers.json"
    known: dict[str, str | None] | None = None
    if noted.exists():
        known = json.loads(noted.read_text())
    if peer is None or peer == "gymnasium":
        return None
    if known is None:
        try:
            found = importlib.util.find_spec(peer.replace("-", "_"))
        except (ImportError, ValueError):
            found = None
        return None if found else "it is not installed here; run this through scripts/peers"
    return known.get(peer, "benchmarks/peers.txt does not name it")


def open_vector(
    name: str, kind: Kind, num_envs: int, *, reads: bool, settings: dict[str, Any] | None = None
) -> Opened:
    """Return a vector of this name.

    Raises:
        NotAvailableError: It cannot take part here.
    """
    missing = why_missing(name)
    if missing is not None:
        raise NotAvailableError(missing)
    entrant = ENTRANTS[name]
    told = dict(settings or {}) if entrant.peer else {"reads": reads}
    try:
        return entrant.open(kind, num_envs, **told)
    except ew.errors.BackendNotFoundError as error:
        raise NotAvailableError(str(error)) from None
    except ImportError as error:
        raise NotAvailableError(f"it cannot be imported: {error}") from error


def end_leftovers() -> int:
    """End what a peer has left running, and return how many processes that were."""
    ended = 0
    for pid in children_of():
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"resource_tracker" in told or b"forkserver" in told:
                continue
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ended += 1
    return ended
