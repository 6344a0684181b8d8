"""What a script, a notebook or a function defines reaches worker processes by value."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envweave as ew

SCRIPT = '''
{future}
import sys
from dataclasses import dataclass
from typing import Any
import numpy as np
import envweave as ew

@dataclass
class Move(ew.Action):
    by: int = 1

@dataclass
class Seen(ew.Observation):
    at: int = 0
    note: str = ""

class Walk(ew.Environment):
    def reset(self, *, seed: int | None = None) -> Seen:
        self.at = 0
        return Seen(at=0)

    def step(self, action: Move) -> Seen:
        self.at += action.by
        return Seen(at=self.at, note=type(action).__module__, reward=float(self.at))

@dataclass
class Wish:
    for_what: str

class Free(ew.Environment):
    """Takes any object for an action."""
    def reset(self):
        return np.zeros(1), {{}}
    def step(self, action: Any):
        return np.ones(1), 1.0, False, False, {{"wish": action, "is_one": isinstance(action, Wish)}}

start = 3
def build():
    walk = Walk()
    walk.start = start
    return walk

def inside():
    class Inner(Walk):
        pass
    return Inner

def play(what, **how):
    with ew.make_vector(what, num_envs=3, backend="process", autoreset=True, **how) as venv:
        venv.reset(seed=1)
        venv.step([Move(1), Move(2), {{"by": 3}}])
        batch = venv.step([Move(1)] * 3)
        assert batch.reward.tolist() == [2.0, 3.0, 4.0], batch.reward
        assert type(batch[2].observation) is Seen and batch[2].observation.at == 4
        assert batch[0].observation.note == "__main__"
    with ew.make(what, backend="process") as env:
        env.reset()
        assert type(env.step(Move(5)).observation) is Seen

ew.register("local://walk-v0", factory=lambda: Walk())
play(Walk)
play(Walk, workers=2)
play("local://walk-v0", workers=2)
play(build, workers=2)
play(inside(), workers=2)
for how in ({{}}, {{"workers": 2}}):
    with ew.make_vector(Free, num_envs=3, backend="process", **how) as venv:
        venv.reset()
        for _ in range(2):
            batch = venv.step([Wish("a"), "b", Wish("c")])
            assert [row.info["is_one"] for row in batch] == [True, False, True]
            assert batch[2].info["wish"] == Wish("c")
with ew.make(Free, backend="process") as env:
    env.reset()
    assert env.step(Wish("a")).info == {{"wish": Wish("a"), "is_one": True}}
print("fine")
'''


@pytest.mark.slow
@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_a_script_needs_no_guard_and_no_module(tmp_path: Path, future: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(future=future), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )

    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.slow  # starts worker processes
def test_a_module_beside_the_script_is_imported_by_the_workers(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        textwrap.dedent("""
        import envweave as ew
        class Beside(ew.Environment):
            def reset(self): return 0, {}
            def step(self, action: int): return action, float(__debug__), False, False, {}
        """)
    )
    script = """
        import beside, envweave as ew
        with ew.make_vector(beside.Beside, num_envs=2, backend="process", workers=2) as venv:
            venv.reset(); print(venv.step([1, 2]).reward)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-O", "script.py"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=os.environ,
    )

    assert (done.stdout, done.stderr) == (
        "[0. 0.]\n",
        "",
    )  # with the flags of the parent


@pytest.mark.slow  # starts worker processes
def test_a_closure_is_sent_with_its_values() -> None:
    held = np.arange(3)

    class Holds(ew.Environment):
        def reset(self) -> Any:
            return held, {}

        def step(self, action: int) -> Any:
            return held * action, 1.0, False, False, {}

    with ew.make_vector(lambda: Holds(), num_envs=2, backend="process", workers=2) as venv:
        venv.reset()

        assert venv.step([2, 3]).successor.tolist() == [[0, 2, 4], [0, 3, 6]]
