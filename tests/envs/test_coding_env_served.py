"""The coding environment on a server: flat on the network, and each session on its own."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from servers import app_served, served

import envweave as ew
from envweave.codeact import Variable
from envweave.envs.coding_env import (
    CodeAction,
    CodeObservation,
    CodeState,
    CodingEnv,
    CodingEnvironment,
)

FIELDS = {
    *("stdout", "stderr", "exit_code", "result", "limits_hit", "tool_calls"),
    *("code", "prompt", "available_tools", "reward", "done", "truncated", "metadata"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    from envweave.envs.coding_env.server.app import app

    with app_served(app) as where:
        yield where


def post(url: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_observation_of_a_step_is_flat(url: str) -> None:
    post(url, "/reset", {})

    answer = post(url, "/step", {"action": {"code": "print('hi')\n{'a': 1}"}})

    shown = answer["observation"]
    assert set(shown) == FIELDS
    assert (shown["stdout"], shown["stderr"], shown["exit_code"]) == ("hi\n", "", 0)
    assert (shown["result"], shown["limits_hit"]) == ("{'a': 1}", [])


def test_its_client_reaches_its_app(url: str) -> None:
    with CodingEnv(url) as env:
        began = env.reset(seed=3, episode_id="mine")
        env.step(CodeAction("x = 6"))
        result = env.step(CodeAction("print(x * 7)\nx / 0"))
        state = env.state()

    assert began.observation == CodeObservation()
    assert isinstance(result.observation, CodeObservation)
    assert (result.observation.stdout, result.observation.exit_code) == ("42\n", 1)
    assert "ZeroDivisionError" in result.observation.stderr
    assert isinstance(state, CodeState)
    assert (state.episode_id, state.step_count, state.last_exit_code) == ("mine", 2, 1)
    assert state.variables == {"x": Variable("int", "6")}


def test_a_reward_is_applied_once_with_every_transport() -> None:
    transform = ew.create_math_env_transform(expected_answer=42)
    with served(CodingEnvironment, transform=transform) as url:
        with CodingEnv(url) as env:
            env.reset()
            by_client = env.step(CodeAction("6 * 7"))
        with ew.make(url) as env:
            env.reset()
            by_make = env.step({"code": "6 * 7"})
        post(url, "/reset", {})
        by_hand = post(url, "/step", {"action": {"code": "6 * 7"}})
    with ew.make(CodingEnvironment, transform=transform) as env:
        env.reset()
        here = env.step(CodeAction("6 * 7"))

    assert here.reward_parts["math"] == 1.0
    assert by_client.observation == here.observation
    assert [by_client.reward, by_make.reward, by_hand["reward"]] == [here.reward] * 3
    assert by_make.reward_parts == here.reward_parts
    assert by_hand["observation"]["metadata"]["reward_parts"] == here.reward_parts


def test_a_terminal_is_served_the_same_way() -> None:
    with served(CodingEnvironment, profile="shell") as url, CodingEnv(url) as env:
        env.reset()
        env.step(CodeAction("mkdir src; cd src; touch a b c"))
        result = env.step(CodeAction("ls | wc -l; (exit 3)"))
        state = env.state()

    assert (result.observation.stdout, result.observation.exit_code) == ("3\n", 3)
    assert (state.last_exit_code, state.executor) == (3, "terminal")


CIRCLE = """
import os, threading
say_that_it_begins()
threading.Thread(target=lambda: (wait_for_the_others(), os._exit(0)), daemon=True).start()
while True: pass
"""


@pytest.mark.slow  # starts several sandboxes
def test_sixty_four_sessions_continue_while_another_loops_forever() -> None:
    begins, others_are_done = threading.Event(), threading.Event()

    def say_that_it_begins() -> None:
        begins.set()

    def wait_for_the_others() -> bool:
        return others_are_done.wait(60)

    async def circle(pool: ew.Pool) -> Any:
        async with pool.line() as env:
            await env.reset()
            return await env.step({"code": CIRCLE})

    async def count(pool: ew.Pool, i: int) -> list[str]:
        async with pool.line() as env:
            await env.reset()
            await env.step({"code": f"x = {i}"})
            shown = [await env.step({"code": "x += 1; x"}) for _ in range(3)]
            return [one.observation.result for one in shown]

    async def play(url: str) -> tuple[list[list[str]], bool, Any]:
        async with ew.pool(url, size=65) as pool:
            endless = asyncio.ensure_future(circle(pool))
            assert await asyncio.to_thread(begins.wait, 60)
            counted = await asyncio.gather(*(count(pool, i) for i in range(64)))
            was_over = endless.done()
            others_are_done.set()
            return counted, was_over, await endless

    tools = [say_that_it_begins, wait_for_the_others]
    with served(CodingEnvironment, limits={"timeout_s": 90}, tools=tools, max_sessions=80) as url:
        counted, was_over, ended = asyncio.run(asyncio.wait_for(play(url), 120))

    assert counted == [[str(i + 1), str(i + 2), str(i + 3)] for i in range(64)]
    assert not was_over
    assert (ended.end.blame, ended.observation.exit_code) == ("agent", 137)
