"""`envweave bench`."""

from __future__ import annotations

import json

import pytest

from envweave.bench.report import ALONE, ENVWEAVE, THROUGH, BenchPlan, BenchReport, SoloFigures
from envweave.bench.solo import Rate, overhead_us
from envweave.cli.commands.bench import print_solo

SOURCE = '''
import asyncio
import time
from typing import Annotated

import envweave as ew


class Masked(ew.Environment):
    """Only one of three actions is legal, another one each step."""

    def reset(self, *, seed: int | None = None):
        self.steps = 0
        return 0, {"action_mask": [1, 0, 0]}

    def step(self, action: Annotated[int, ew.Bounds(0, 2)]):
        if action != self.steps % 3:
            raise RuntimeError("an illegal action")
        self.steps += 1
        mask = [int(i == self.steps % 3) for i in range(3)]
        return 0, 1.0, False, self.steps == 7, {"action_mask": mask}


class Awaited(ew.Environment):
    async def reset(self):
        return 0

    async def step(self, action: bool):
        await asyncio.sleep(0)
        return 0, 1.0, False, False, {}


class Broken(ew.Environment):
    def __init__(self):
        self.steps = 0

    def reset(self):
        return 0

    def step(self, action: bool):
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("it came apart")
        return 0, 1.0, False, False, {}


class Asking(ew.Environment):
    """Asks its caller at each step."""

    def reset(self):
        return 0

    def step(self, action: bool):
        self.emit(ew.ToolCallRequest("1", "search"))
        return 0, None, False, False, {}

    def answer(self, result):
        return 0, 5.0, True, False, {}


class Slow(ew.Environment):
    def reset(self):
        return 0

    def step(self, action: bool):
        time.sleep(0.1)
        return 0, 1.0, False, False, {}


class Untyped(ew.Environment):
    def reset(self):
        return 0

    def step(self, action):
        return 0, 1.0, True, False, {}


class Chatty(ew.Environment):
    def reset(self):
        print("hello")
        return 0

    def step(self, action: bool):
        return 0, 1.0, True, False, {}
'''

TINY = ("--seconds", "0.002", "--repeats", "2", "--no-memory")
SERIAL = ("--backend", "inproc", "--mode", "serial")


@pytest.fixture
def environments(here):
    (here / "sample_env.py").write_text(SOURCE)
    return "pkg://sample_env:"


def is_rate(parsed, repeats=2):
    return (
        len(parsed["samples"]) == repeats
        and min(parsed["samples"]) == parsed["low"] > 0
        and parsed["low"] <= parsed["median"] <= parsed["high"] == max(parsed["samples"])
    )


@pytest.mark.slow  # measures for a while
def test_one_environment_and_vectors_are_measured(envweave):
    # As many environments as take more than a page of memory.
    ran = envweave("bench", "counter-v0", "--num-envs", "300", *TINY, "--memory", *SERIAL, "--json")

    parsed = json.loads(ran.stdout)
    assert ran.code == 0
    assert list(parsed["one"]["steps_per_s"]) == [
        "the author's code alone",
        "through make",
        "requests and info read too",
    ]
    assert all(is_rate(rate) for rate in parsed["one"]["steps_per_s"].values())
    assert parsed["one"]["failures"] == {}
    assert len(parsed["one"]["overhead_us"]["samples"]) == 2
    assert set(parsed["one"]["parts_us"]) == {
        "reset() of the environment",
        "step() of the environment",
        "envweave",
    }
    [vector] = parsed["vectors"]
    assert is_rate(vector.pop("steps_per_s"))
    assert vector.pop("bytes_per_env") > 0
    assert vector == {"backend": "inproc", "mode": "serial", "num_envs": 300, "problem": None}
    assert parsed["machine"]["cores"] >= 1
    assert parsed["one"]["mean_episode_length"] > 1


@pytest.mark.slow  # measures for a while
def test_long_episodes_come_without_a_hint(envweave):
    ran = envweave("bench", "counter-v0", "-a", "done_at=100000", "--num-envs", "2", *TINY, *SERIAL)

    assert "No episode ended while the steps were recorded." in ran.text
    assert "Hint:" not in ran.text


def test_an_overhead_below_zero_is_within_noise(capsys):
    plan = BenchPlan("counter-v0", {})
    rates = {ALONE: Rate((1e6, 1e6)), THROUGH: Rate((1.1e6, 0.9e6))}
    overhead = overhead_us(rates[ALONE], rates[THROUGH])
    parts = {"step() of the environment": 1.0, ENVWEAVE: 0.0}
    solo = SoloFigures(rates, {}, overhead, parts, mean_length=50.0)

    print_solo(BenchReport(plan, {}, solo, []))

    text = " ".join(capsys.readouterr().out.split())
    assert "make adds nothing measurable to a step (-0.09 to 0.11 µs)." in text
    assert "envweave within noise –" in text


@pytest.mark.slow  # measures for a while
def test_the_tables_show_what_was_measured(envweave):
    ran = envweave("bench", "counter-v0", "--num-envs", "2", "--steps", "20", *TINY, *SERIAL)

    assert ran.code == 0
    assert "counter-v0, median of 2 × 20 steps, random actions" in ran.text
    assert "the author's code alone" in ran.text
    assert "make adds" in ran.text
    assert "Where the time goes" in ran.text
    assert "2 inproc serial" in ran.text
    assert "Episodes have" in ran.text
    assert "Hint: with episodes this short, their ends and resets" in ran.text


@pytest.mark.slow  # measures for a while
def test_every_way_that_applies_is_measured(envweave):
    ran = envweave("bench", "gym://CartPole-v1", "--num-envs", "2", *TINY, "--json")

    found = {(one["backend"], one["mode"]): one for one in json.loads(ran.stdout)["vectors"]}
    assert {
        ("inproc", "serial"),
        ("inproc", "threads"),
        ("gymnasium", "sync"),
        ("gymnasium", "async"),
    } <= set(found)
    assert [one["problem"] for one in found.values()] == [None] * len(found)


@pytest.mark.slow  # measures for a while
def test_several_sizes_are_measured_once_each_in_order(envweave):
    sizes = [part for size in "423" for part in ("--num-envs", size)]

    ran = envweave("bench", "counter-v0", *sizes, "--num-envs", "2", *TINY, *SERIAL, "--json")

    assert [one["num_envs"] for one in json.loads(ran.stdout)["vectors"]] == [2, 3, 4]


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize("name", ["Masked", "Asking"])
def test_actions_follow_what_each_step_asks_for(envweave, environments, name):
    ran = envweave("bench", environments + name, "--num-envs", "2", *TINY, *SERIAL, "--json")

    parsed = json.loads(ran.stdout)
    assert parsed["one"]["failures"] == {}
    assert [one["problem"] for one in parsed["vectors"]] == [None]


@pytest.mark.slow  # measures for a while
def test_several_agents_are_measured_as_one_environment(envweave):
    ran = envweave("bench", "tictactoe-v0", "--num-envs", "2", *TINY, "--json")

    assert ran.code == 0
    assert json.loads(ran.stdout)["one"]["failures"] == {}


@pytest.mark.slow  # measures for a while
def test_an_async_environment_runs_on_an_event_loop(envweave, environments):
    ran = envweave("bench", f"{environments}Awaited", "--num-envs", "2", *TINY, "--json")

    parsed = json.loads(ran.stdout)
    assert all(is_rate(rate) for rate in parsed["one"]["steps_per_s"].values())
    assert ("inproc", "async") in [(one["backend"], one["mode"]) for one in parsed["vectors"]]
    assert "serial" not in [one["mode"] for one in parsed["vectors"]]


@pytest.mark.slow  # measures for a while
def test_a_vector_that_would_take_too_long_is_skipped_with_the_reason(envweave, environments):
    ran = envweave("bench", f"{environments}Slow", "--num-envs", "64", *TINY, "--repeats", "1")

    assert ran.code == 0
    assert "64 inproc serial: skipped: stepping 64 would take about" in ran.text


@pytest.mark.slow  # measures for a while
def test_an_environment_that_fails_is_reported_with_its_cause(envweave, environments):
    ran = envweave("bench", f"{environments}Broken", *TINY)

    assert ran.code == 1
    assert "failed while it was measured: RuntimeError: it came apart" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_an_environment_whose_actions_cannot_be_drawn_is_refused(envweave, environments):
    ran = envweave("bench", f"{environments}Untyped", *TINY)

    assert ran.code == 2
    assert "The random policy cannot act in" in ran.stderr


@pytest.mark.slow  # measures for a while
def test_stdout_has_the_json_document_only(envweave, environments):
    ran = envweave("bench", f"{environments}Chatty", "--num-envs", "2", *TINY, *SERIAL, "--json")

    assert json.loads(ran.stdout)["id"] == f"{environments}Chatty"
    assert "hello" in ran.stderr


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--num-envs", "0"), "Invalid value for '--num-envs'"),
        (("--repeats", "0"), "Invalid value for '--repeats'"),
        (("--steps", "-1"), "Invalid value for '--steps'"),
        (("--speed", "1"), "No such option"),
        (("--backend", "proces"), "No backend is called 'proces'."),
        (("--mode", "seriel", *TINY), "Did you mean 'serial'?"),
        (("--arg", "done_at"), "is not NAME=VALUE"),
        (("--arg", "colour=1"), "'colour' is neither an option of make() nor a keyword"),
    ],
)
def test_invalid_options_are_refused(envweave, options, says):
    ran = envweave("bench", "counter-v0", *options)

    assert ran.code == 2
    assert says in " ".join(ran.stderr.split())


def test_an_unknown_environment_is_answered_with_the_nearest(envweave):
    ran = envweave("bench", "countr-v0")

    assert ran.code == 2
    assert "Did you mean 'counter-v0'?" in ran.stderr
