"""How candidates are measured: in turns, and without stopping at one that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envweave.bench.memory import children_of, describe_machine, tree_bytes, usable_cores
from envweave.bench.solo import Candidate, Rate, best, contest, measure, overhead_us, ratio


class Noting:
    """Takes steps, and notes who was asked."""

    def __init__(self):
        self.calls = []

    def candidate(self, name, *, steps=1, fails_at=None, **more):
        def step():
            self.calls.append(name)
            if fails_at is not None and self.calls.count(name) == fails_at:
                raise RuntimeError("no more")
            return steps

        return Candidate(name, step, **more)


@pytest.mark.slow  # measures for a while
def test_contenders_take_turns():
    noting = Noting()
    turns = []

    contest(
        [noting.candidate("a"), noting.candidate("b")],
        repeats=2,
        seconds=1.0,
        steps=1,
        on_sample=turns.append,
    )

    assert turns == ["a", "b", "a", "b"]
    assert noting.calls == ["a", "a", "b", "b"] * 2


@pytest.mark.slow  # measures for a while
def test_there_is_a_figure_for_each_turn():
    found = contest([Noting().candidate("a", steps=5)], repeats=3, seconds=0.001)

    assert len(found.rates["a"].samples) == 3
    assert found.failures == {}


@pytest.mark.slow  # measures for a while
def test_a_candidate_that_fails_is_dropped_and_the_others_continue():
    noting = Noting()

    found = contest(
        [noting.candidate("a", fails_at=3), noting.candidate("b")], repeats=3, seconds=1.0, steps=1
    )

    assert list(found.rates) == ["b"]
    assert found.failures["a"].startswith("RuntimeError: no more")
    assert len(found.rates["b"].samples) == 3


def test_invalid_steps_do_not_count():
    def check():
        raise ValueError("not valid")

    found = contest([Noting().candidate("a", check=check)], repeats=2, seconds=0.001)

    assert found.rates == {}
    assert found.failures["a"].startswith("ValueError: not valid")


def test_what_is_prepared_is_prepared_before_each_step():
    noting = Noting()

    measure(noting.candidate("step", prepare=lambda: noting.calls.append("prepare")), 1.0, steps=2)

    assert noting.calls == ["prepare", "step"] * 2


def test_a_guard_that_raises_ends_a_turn():
    def guard(name):
        raise TimeoutError(f"{name} is late")

    found = contest([Noting().candidate("a")], repeats=2, seconds=0.001, guard=guard)

    assert found.failures["a"].startswith("TimeoutError: a is late")


def test_a_rate_is_its_median_with_the_spread():
    rate = Rate((300.0, 100.0, 200.0))

    assert rate.as_json() == {
        "median": 200.0,
        "low": 100.0,
        "high": 300.0,
        "samples": [300.0, 100.0, 200.0],
    }
    assert rate.step_us == 5000.0


def test_ratios_and_overhead_are_of_the_same_turn():
    slow, quick = Rate((100.0, 200.0)), Rate((1000.0, 1000.0))

    assert ratio(quick, slow).samples == (10.0, 5.0)
    assert overhead_us(quick, slow).samples == (9000.0, 4000.0)


def test_the_best_is_the_one_with_the_highest_median():
    rates = {"a": Rate((1.0, 9.0, 2.0)), "b": Rate((3.0, 3.0, 3.0))}

    assert best(rates, ["a", "b", "c"]) == "b"
    assert best(rates, ["c"]) is None


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="the system does not tell")
def test_the_memory_of_children_counts():
    code = "block = bytearray(b'x' * 40_000_000); print(flush=True); input()"
    before = tree_bytes()

    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        during, seen = tree_bytes(), children_of()
        child.communicate(b"\n")

    assert child.pid in seen
    assert during - before > 35_000_000
    assert child.pid not in children_of()


def test_a_machine_is_described_with_the_versions_that_are_there():
    description = describe_machine(["msgspec", "no-such-package"])

    assert set(description["versions"]) == {"envweave", "numpy", "msgspec"}
    assert description["cores"] == usable_cores() >= 1
    assert description["processor"]
