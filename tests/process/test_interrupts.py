"""Ctrl-C reaches only the parent process; afterwards every call gets its own reply."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments.crashing import GO, WAIT, Crashing, SendsInterrupts

import envweave as ew
from envweave.errors import ResetNeededError


def vector(kind: Any = SendsInterrupts, **options: Any) -> ew.VectorEnv:
    options = {"workers": 2, **options}
    return ew.make_vector(kind, num_envs=4, backend="process", **options)


@pytest.mark.slow  # starts worker processes
def test_a_ctrl_c_at_the_terminal_does_not_reach_the_workers() -> None:
    with vector(Crashing) as venv:
        batch = venv.reset(seed=5)

        assert os.getsid(int(batch.current[0, 0])) != os.getsid(0)


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("workers", [None, 2])
def test_an_interrupted_step_continues_and_can_be_received(workers: int | None) -> None:
    with vector(workers=workers) as venv:
        venv.reset(seed=5)

        with pytest.raises(KeyboardInterrupt):
            venv.step([GO, GO, GO, WAIT])
        batch = venv.drain()

        assert sorted(batch.ids.tolist())[-2:] == [2, 3]
        assert batch.valid.all()
        venv.reset(ids=[i for i in range(4) if i not in batch.ids])
        assert venv.step([GO] * 4).successor[:, 2].tolist()[2:] == [2, 2]


@pytest.mark.slow  # starts worker processes
def test_after_an_interrupted_reset_every_call_gets_its_own_reply(tmp_path: Path) -> None:
    with vector(at=str(tmp_path)) as venv:
        venv.reset(seed=5)
        (tmp_path / "press-reset").touch()

        with pytest.raises(KeyboardInterrupt):
            venv.reset(seed=50)

        with pytest.raises(ResetNeededError, match=r"reset\(\) was interrupted by Keyboard"):
            venv.step([GO] * 4)
        again = venv.reset(seed=60)
        assert [info["seed"] for info in again.infos] == [60, 61, 62, 63]
        batch = venv.step([GO] * 4)
        assert batch.successor[:, 1:].tolist() == [[60, 1], [61, 1], [62, 1], [63, 1]]


@pytest.mark.slow  # starts worker processes
def test_after_an_interrupted_state_every_call_gets_its_own_reply(tmp_path: Path) -> None:
    with vector(at=str(tmp_path)) as venv:
        venv.reset(seed=5)
        (tmp_path / "press-state").touch()

        with pytest.raises(KeyboardInterrupt):
            venv.state()

        batch = venv.step([GO] * 4)
        assert (batch.step_index.tolist(), batch.valid.all()) == ([1] * 4, True)
        assert [state.step_count for state in venv.state()] == [1] * 4


@pytest.mark.slow  # starts worker processes
def test_a_single_environment_needs_a_reset_after_an_interrupt() -> None:
    with ew.make(SendsInterrupts, backend="process") as env:
        env.reset(seed=5)

        with pytest.raises(KeyboardInterrupt):
            env.step(WAIT)

        with pytest.raises(ResetNeededError, match="interrupted"):
            env.step(GO)
        env.reset(seed=6)
        assert env.step(GO).observation[1:].tolist() == [6, 1]


STORM = """
import contextlib, random, signal, sys, threading, time
import envweave as ew
from envweave.errors import CallOrderError
from environments.values import Shows

def press():
    rng, until = random.Random(3), time.monotonic() + 60
    while time.monotonic() < until and not enough():
        time.sleep(rng.uniform(0.0005, 0.03))
        signal.pthread_kill(main, signal.SIGINT)
    calm.set()

def enough():
    return steps > 10 and interrupts > 100

def interrupt(*_):
    global armed
    if armed:  # not while the last one is counted
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
how = {"workers": 2} if sys.argv[2] == "workers" else {}
venv = ew.make_vector(Shows, num_envs=4, backend="process", kind=sys.argv[1], **how)
main, calm = threading.main_thread().ident, threading.Event()
mixed, steps, interrupts, armed = [], 0, 0, False
thread = threading.Thread(target=press)
while not calm.is_set():
    try:
        if thread.ident is None:
            thread.start()
        armed = True
        with contextlib.suppress(CallOrderError):
            while venv.in_flight:
                venv.drain()
            venv.reset(seed=0)
            for step in range(1, 5):
                at = [row.reward - i for i, row in enumerate(venv.step([1] * 4))]
                mixed += [] if at == [step] * 4 else [at]
                steps += 1
        armed = False
    except KeyboardInterrupt:
        interrupts += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
thread.join()
venv.close()
assert enough(), (steps, interrupts)
print(mixed, threading.active_count())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "record"])
@pytest.mark.parametrize("share", ["own", "workers"])
def test_many_interrupts_never_mix_up_replies(kind: str, share: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORM, kind, share],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # an interrupt in a destructor is reported there
        text=True,
        timeout=110,
        check=True,
    )

    assert done.stdout == "[] 1\n"
