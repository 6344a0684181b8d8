"""However a program ends, no process, shared memory or file descriptor is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from environments.crashing import GO, HANG, ClosesBadly, Crashing, NeverCloses
from processes import Leftovers

import envweave as ew
from envweave.errors import ClosedError

SUPPORT = Path(__file__).parents[1] / "support"


def vector(kind: Any = Crashing, **options: Any) -> ew.VectorEnv:
    return ew.make_vector(kind, num_envs=4, backend="process", workers=2, **options)


@pytest.mark.slow  # starts worker processes
def test_a_closed_vector_refuses_and_may_be_closed_again() -> None:
    venv = vector()
    venv.reset(seed=5)

    venv.close()
    venv.close()

    with pytest.raises(ClosedError):
        venv.reset()


@pytest.mark.slow  # starts worker processes
def test_every_environment_is_closed_and_the_first_failure_is_raised(tmp_path: Path) -> None:
    venv = vector(ClosesBadly, at=str(tmp_path))
    venv.reset(seed=5)

    with pytest.raises(OSError, match="socket"):
        venv.close()
    venv.close()

    assert sorted(one.name for one in tmp_path.glob("closed-*")) == [
        f"closed-{seed}" for seed in (5, 6, 7, 8)
    ]


@pytest.mark.slow  # starts worker processes
def test_closing_while_a_worker_hangs_in_a_step_ends_it() -> None:
    venv = vector()
    venv.reset(seed=5)
    venv.send([GO, GO, GO, HANG])

    venv.close()


@pytest.mark.slow  # starts worker processes
def test_closing_ends_an_environment_that_never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envweave.vector.process.worker_pool.CLOSE_S", 0.1)
    venv = vector(NeverCloses)

    venv.close()


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("timeout_s", [None, 30.0])
def test_one_environment_that_never_closes_is_ended_too(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    monkeypatch.setattr("envweave.workers.session_drivers.CLOSE_S", 0.2)
    env = ew.make(NeverCloses, backend="process", timeout_s=timeout_s)
    env.reset(seed=5)

    env.close()


@pytest.mark.slow  # starts worker processes
def test_closing_while_a_worker_is_replaced_ends_both() -> None:
    venv = vector(autoreset=True)
    batch = venv.reset(seed=5)
    os.kill(int(batch.current[0, 0]), signal.SIGKILL)
    venv.send([GO] * 4)
    venv.recv(min_ready=2)

    venv.close()


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("what", ["vector", "one"])
def test_dropping_without_close_warns_and_leaves_no_process(what: str) -> None:
    made: Any = vector() if what == "vector" else ew.make(Crashing, backend="process")
    made.reset(seed=5)

    with pytest.warns(ResourceWarning, match="dropped without close"):
        made = None


@pytest.mark.slow
def test_many_vectors_and_many_kills_leak_no_file_descriptor() -> None:
    with vector() as venv:
        venv.reset(seed=5)
    del venv
    left = Leftovers()

    for _ in range(5):
        with vector(autoreset=True) as venv:
            batch = venv.reset(seed=5)
            for _ in range(3):
                os.kill(int(batch.current[0, 0]), signal.SIGKILL)
                batch = venv.step([GO] * 4)
    del venv, batch
    gc.collect()  # mapped memory goes with the last array of it

    assert left.descriptors() == []


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("way", ["leave", "exit"])
def test_a_forked_copy_of_the_parent_does_not_disturb_its_workers(way: str) -> None:
    script = f"""
    import os, sys
    import envweave as ew
    from environments.crashing import Crashing
    venv = ew.make_vector(Crashing, num_envs=4, backend="process", workers=2)
    env = ew.make(Crashing, backend="process")
    venv.reset(seed=5); env.reset(seed=5)
    venv.send([0] * 4)
    child = os.fork()
    if child == 0:
        {"sys.exit(0)" if way == "leave" else "del venv, env; os._exit(0)"}
    assert os.waitpid(child, 0)[1] == 0
    assert venv.drain().valid.all() and env.step(0).valid
    assert venv.step([0] * 4).step_index.tolist() == [2] * 4
    venv.close(); env.close()
    print("fine")
    """

    assert run(script) == "fine\n"


TRAINER = """
    import os, signal, sys, threading, time
    import envweave as ew
    from environments.crashing import GO, HANG, Parent
    made = []
    def make():
        made.append(ew.make_vector(Parent, num_envs=2, backend="process", workers=2, at=AT))
        made.append(ew.make(Parent, backend="process", at=AT))
    if IN_A_THREAD:
        thread = threading.Thread(target=make); thread.start(); thread.join()
    else:
        make()
    batch, result = made[0].reset(seed=5), made[1].reset(seed=5)
    print(*batch.current[:, 0], result.observation[0], flush=True)
    if HANGS:
        made[0].send([HANG, GO])
        made[0].recv()
    copy = os.fork()
    if copy == 0:  # holds our ends of all connections
        os.close(1), os.close(2)
        time.sleep(60)
        os._exit(0)
    print(copy, flush=True)
    LEAVE
"""


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
WAYS = [(KILLED, hangs, is_threaded) for hangs in (False, True) for is_threaded in (False, True)]
WAYS += [("os.kill(os.getpid(), signal.SIGTERM)", False, False), ("os._exit(0)", False, False)]
WAYS += [("sys.exit(0)", False, True), ("raise ValueError", True, False)]


@pytest.mark.slow
@pytest.mark.parametrize(("leave", "hangs", "is_threaded"), WAYS)
def test_workers_and_their_children_end_with_their_parent(
    tmp_path: Path, leave: str, hangs: bool, is_threaded: bool
) -> None:
    script = TRAINER.replace("LEAVE", leave).replace("HANGS", str(hangs))
    script = script.replace("IN_A_THREAD", str(is_threaded)).replace("AT", repr(str(tmp_path)))

    *workers, copy = [int(pid) for pid in run(script, check=False).split()]

    children = [int(one.name.removeprefix("child-")) for one in tmp_path.glob("child-*")]
    assert (len(workers), len(children)) == (3, 3)
    for pid in (*workers, *children):
        await_end(pid)
    os.kill(copy, signal.SIGKILL)


def await_end(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    pause = threading.Event()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2][1] == "Z":
                return
        except OSError:
            return
        pause.wait(0.05)
    raise AssertionError(f"process {pid} is still there")


def run(script: str, *, check: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if not check else None,
        text=True,
        timeout=60,
        check=check,
    )
    return done.stdout


@pytest.mark.slow  # starts worker processes
def test_close_frees_the_shared_memory_although_vector_and_batches_are_still_referenced() -> None:
    venv = vector()
    venv.reset(seed=5)
    batch = venv.step([GO] * venv.num_envs)
    assert "memfd:envweave" in Path("/proc/self/maps").read_text()

    venv.close()

    assert "memfd:envweave" not in Path("/proc/self/maps").read_text()
    assert batch.reward.tolist() == [1.0] * venv.num_envs
