"""`envweave bench`."""

from __future__ import annotations

import json

import pytest

WORLDS = '''
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
def worlds(here):
    (here / "worlds_env.py").write_text(WORLDS)
    return "pkg://worlds_env:"


def is_rate(told, repeats=2):
    return (
        len(told["samples"]) == repeats
        and min(told["samples"]) == told["low"] > 0
        and told["low"] <= told["median"] <= told["high"] == max(told["samples"])
    )


@pytest.mark.slow  # measures for a while
def test_one_environment_and_vectors_are_measured(envweave):
    # As many environments as take more than a page of memory.
    ran = envweave("bench", "counter-v0", "--num-envs", "300", *TINY, "--memory", *SERIAL, "--json")

    told = json.loads(ran.stdout)
    assert ran.code == 0
    assert list(told["one"]["steps_per_s"]) == [
        "the author's code alone",
        "through make",
        "requests and info read too",
    ]
    assert all(is_rate(rate) for rate in told["one"]["steps_per_s"].values())
    assert told["one"]["failures"] == {}
    assert len(told["one"]["overhead_us"]["samples"]) == 2
    assert set(told["one"]["parts_us"]) == {
        "reset() of the environment",
        "step() of the environment",
        "envweave",
    }
    [vector] = told["vectors"]
    assert is_rate(vector.pop("steps_per_s"))
    assert vector.pop("bytes_per_env") > 0
    assert vector == {"backend": "inproc", "mode": "serial", "num_envs": 300, "problem": None}
    assert told["machine"]["cores"] >= 1


@pytest.mark.slow  # measures for a while
def test_the_tables_show_what_was_measured(envweave):
    ran = envweave("bench", "counter-v0", "--num-envs", "2", "--steps", "20", *TINY, *SERIAL)

    assert ran.code == 0
    assert "counter-v0, median of 2 × 20 steps, random actions" in ran.text
    assert "the author's code alone" in ran.text
    assert "make adds" in ran.text
    assert "Where the time goes" in ran.text
    assert "2 inproc serial" in ran.text


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
def test_actions_follow_what_each_step_asks_for(envweave, worlds, name):
    ran = envweave("bench", worlds + name, "--num-envs", "2", *TINY, *SERIAL, "--json")

    told = json.loads(ran.stdout)
    assert told["one"]["failures"] == {}
    assert [one["problem"] for one in told["vectors"]] == [None]


@pytest.mark.slow  # measures for a while
def test_several_agents_are_measured_as_one_environment(envweave):
    ran = envweave("bench", "tictactoe-v0", "--num-envs", "2", *TINY, "--json")

    assert ran.code == 0
    assert json.loads(ran.stdout)["one"]["failures"] == {}


@pytest.mark.slow  # measures for a while
def test_an_async_environment_runs_on_an_event_loop(envweave, worlds):
    ran = envweave("bench", f"{worlds}Awaited", "--num-envs", "2", *TINY, "--json")

    told = json.loads(ran.stdout)
    assert all(is_rate(rate) for rate in told["one"]["steps_per_s"].values())
    assert ("inproc", "async") in [(one["backend"], one["mode"]) for one in told["vectors"]]
    assert "serial" not in [one["mode"] for one in told["vectors"]]


@pytest.mark.slow  # measures for a while
def test_a_vector_that_would_take_too_long_is_left_out_with_the_reason(envweave, worlds):
    ran = envweave("bench", f"{worlds}Slow", "--num-envs", "64", *TINY, "--repeats", "1")

    assert ran.code == 0
    assert "64 inproc serial: left out: stepping 64 would take about" in ran.text


@pytest.mark.slow  # measures for a while
def test_an_environment_that_fails_is_told_with_its_cause(envweave, worlds):
    ran = envweave("bench", f"{worlds}Broken", *TINY)

    assert ran.code == 1
    assert "failed while it was measured: RuntimeError: it came apart" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_an_environment_nobody_can_act_in_is_refused(envweave, worlds):
    ran = envweave("bench", f"{worlds}Untyped", *TINY)

    assert ran.code == 2
    assert "The random policy cannot act in" in ran.stderr


@pytest.mark.slow  # measures for a while
def test_stdout_is_for_the_document_alone(envweave, worlds):
    ran = envweave("bench", f"{worlds}Chatty", "--num-envs", "2", *TINY, *SERIAL, "--json")

    assert json.loads(ran.stdout)["id"] == f"{worlds}Chatty"
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
def test_what_cannot_be_used_is_refused(envweave, options, says):
    ran = envweave("bench", "counter-v0", *options)

    assert ran.code == 2
    assert says in " ".join(ran.stderr.split())


def test_an_unknown_environment_is_answered_with_the_nearest(envweave):
    ran = envweave("bench", "countr-v0")

    assert ran.code == 2
    assert "Did you mean 'counter-v0'?" in ran.stderr
