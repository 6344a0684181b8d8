"""A model's server that is slow, busy, unreachable, or refuses."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from fake_services import Failure, chat_server
from processes import Leftovers

import envweave as ew
from envweave.agents import ChatModel, Message, ModelError

HI: list[Message] = [{"role": "user", "content": "hi"}]


class Barrier:
    """A model that answers only when N requests wait at the same time, or after a while.

    Attributes:
        most: How many asked at the same time.
    """

    def __init__(self, count: int) -> None:
        self.most = 0
        self._count = count
        self._now = 0
        self._changed = threading.Condition()

    def __call__(self, messages: Any) -> str:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._count, 20)
            self._now -= 1
        return "hello"


def test_as_many_requests_run_at_once_as_are_made() -> None:
    barrier = Barrier(64)

    async def main(model: ChatModel) -> list[str]:
        return await asyncio.gather(*(model.ask(HI) for _ in range(64)))

    with chat_server(barrier) as server:
        replies = asyncio.run(main(ChatModel("tiny", server.base_url, "sk-test")))

    assert replies == ["hello"] * 64
    assert barrier.most == 64


def test_the_episodes_of_a_pool_ask_at_the_same_time() -> None:
    barrier = Barrier(48)

    with chat_server(barrier) as server, ew.pool("counter-v0", size=48) as pool:
        model = ChatModel("tiny", server.base_url, "sk-test")

        async def agent(result: Any) -> dict[str, int]:
            return {"delta": len(await model.ask(HI))}

        episodes = ew.rollout(pool, agent, episodes=48).run()

    assert all(episode.usable for episode in episodes)
    assert barrier.most == 48


def test_connections_are_kept_in_a_block_and_none_is_left_after_it() -> None:
    left = Leftovers()
    threads: set[int] = set()  # the server has one for each connection

    def note(messages: Any) -> str:
        threads.add(threading.get_ident())
        return "hello"

    async def main(model: ChatModel) -> None:
        async with model:
            for _ in range(3):
                await model.ask(HI)

    with chat_server(note) as server:
        model = ChatModel("tiny", server.base_url, "sk-test")
        asyncio.run(main(model))
        asyncio.run(model.ask(HI))  # another loop

    assert len(threads) <= 2
    assert left.descriptors() == []


@pytest.mark.parametrize("when", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_tried_again_after_its_retry_after(status: int, when: str) -> None:
    failures = [Failure(status, "slow down", Retry_After=when)]

    def model(messages: Any) -> str:
        if failures:
            raise failures.pop()
        return "hello"

    with chat_server(model) as server:
        reply = asyncio.run(ChatModel("tiny", server.base_url, "sk-test").ask(HI))

    assert reply == "hello"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [
        ("", "sk-wrong", r"401: Incorrect API key provided\. Pass api_key=…"),
        ("/no", "sk-test", r"404: Invalid URL .* Check the model.s name, and that base_url"),
    ],
)
def test_a_refusal_is_reported_with_the_remedy_and_not_retried(
    url: str, key: str, says: str
) -> None:
    with chat_server(lambda messages: "hi") as server:
        model = ChatModel("tiny", server.base_url + url, key)

        with pytest.raises(ModelError, match=says):
            asyncio.run(model.ask(HI))

    assert server.requests == []


def test_a_server_that_is_away_is_named() -> None:
    with chat_server(lambda messages: "hi") as server:
        url = server.base_url

    with pytest.raises(ModelError, match=f"{url} cannot be reached"):
        asyncio.run(ChatModel("tiny", url, attempts=1).ask(HI))


def test_without_httpx2_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)

    with pytest.raises(ew.errors.MissingExtraError, match=r"pip install 'envweave\[http\]'"):
        ChatModel("tiny", "http://127.0.0.1:1/v1").ask_now(HI)
