"""`ChatAgent` and `ReplyAgent`: episodes of a pool, played with replies."""

import asyncio
import json
import socket
import threading

import pytest
from environments.replies import Recorder
from fake_services import Failure, chat_server, completion

import envweave as ew
from envweave.agents import ChatAgent, ModelError, ReplyAgent, Tokens, Truncate
from envweave.errors import OptionError


def test_a_model_plays_every_episode_of_a_pool_at_the_same_time():
    barrier = threading.Barrier(16)

    def model(messages):
        barrier.wait(20)
        return "3"

    with chat_server(model) as server, ew.pool("counter-v0", size=16) as pool:
        agent = ChatAgent(server.base_url, "tiny", api_key="sk-test", temperature=0.5)
        episodes = ew.rollout(pool, agent, episodes=16, progress=False).run()

    assert [episode.reward for episode in episodes] == [3.0] * 16
    assert server.requests[0]["temperature"] == 0.5
    assert episodes[0].steps[0].extra == {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "finish_reason": "stop",
    }
    assert (agent.requests, agent.prompt_tokens, agent.completion_tokens) == (16, 16, 16)


def test_each_episode_has_a_conversation_of_its_own():
    def model(messages):
        return "1" if len(messages) < 6 else "10"

    with chat_server(model) as server, ew.pool("counter-v0", size=2, done_at=12) as pool:
        agent = ChatAgent(server.base_url, "tiny", api_key="sk-test")
        episodes = ew.rollout(pool, agent, episodes=6, progress=False).run()

    assert [episode.length for episode in episodes] == [3] * 6
    assert {len(one["messages"]) for one in server.requests} == {2, 4, 6}


def test_tool_calls_are_offered_made_and_answered():
    def model(messages):
        call = {"name": "counter", "arguments": json.dumps({"delta": len(messages)})}
        return completion(
            {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]}
        )

    with chat_server(model) as server, ew.pool("counter-v0", size=1, done_at=4) as pool:
        agent = ChatAgent(server.base_url, "tiny", api_key="sk-test", use_tools=True)
        (episode,) = ew.rollout(pool, agent, episodes=1, progress=False).run()

    assert episode.reward == 4.0
    assert server.requests[0]["tools"][0]["function"]["name"] == "counter"
    assert server.requests[0]["parallel_tool_calls"] is False
    assert [one["role"] for one in server.requests[1]["messages"]] == ["user", "assistant", "tool"]


def test_tokens_that_the_server_returns_are_kept_as_they_are():
    def model(messages):
        body = completion({"content": "3"}, prompt_token_ids=[5, 6])
        body["choices"][0]["token_ids"] = [7]
        body["choices"][0]["logprobs"] = {"content": [{"token": "3", "logprob": -0.5}]}
        return body

    with chat_server(model) as server, ew.pool("counter-v0", size=1) as pool:
        agent = ChatAgent(server.base_url, "tiny", api_key="sk-test", return_token_ids=True)
        (episode,) = ew.rollout(pool, agent, episodes=1, progress=False).run()

    assert episode.steps[0].extra["tokens"] == Tokens(
        prompt_ids=[5, 6], completion_ids=[7], logprobs=[-0.5]
    )


def test_a_conversation_that_is_too_long_truncates_its_episode_alone():
    def model(messages):
        if len(messages) > 3:
            raise Failure(400, "This model's maximum context length is 10 tokens.")
        return "1"

    with chat_server(model) as server, ew.pool("counter-v0", size=1, done_at=9) as pool:
        agent = ChatAgent(server.base_url, "tiny", api_key="sk-test")
        (episode,) = ew.rollout(pool, agent, episodes=1, progress=False).run()

    assert episode.end.reason == "truncated"
    assert "maximum context length" in episode.end.cause
    assert episode.usable
    assert episode.reward == 1.0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Failure(401, "no"), "answered 401: no Pass api_key"),
        (Failure(404, "no such model"), "answered 404: no such model Check the model's name"),
        (Failure(429, "slow down"), "answered 429: slow down"),
        (Failure(500, "oh"), "answered 500: oh"),
        ([1, 2], "is not a chat completion"),
        ({"choices": []}, "is not a chat completion"),
        ({"choices": [{"message": "hi"}]}, "is not a chat completion"),
        ({"choices": [{"message": {"content": 5}}]}, "must be a str, got int"),
    ],
)
def test_what_a_server_does_wrong_is_named(answer, says):
    def model(messages):
        if isinstance(answer, Failure):
            raise answer
        return answer

    with chat_server(model) as server, ew.pool("counter-v0", size=1) as pool:
        agent = ChatAgent(server.base_url, "tiny", api_key="sk-test", attempts=1)
        with pytest.raises(ModelError, match=says):
            ew.rollout(pool, agent, episodes=1, progress=False).run()


REPLY = json.dumps(completion({"content": "3"})).encode()
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + REPLY[:20]
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(REPLY) + REPLY
TEXT = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
DEEP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2000\r\n\r\n" + b"[" * 2000


def raw_server(answers):
    """Answer one connection after the other with these bytes, then hang up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([CUT], "cannot be reached"),
        ([b""], "cannot be reached"),
        ([TEXT], "not a chat completion"),
        ([DEEP], r"answered 400: \[\["),
    ],
)
def test_a_connection_that_is_cut_or_speaks_no_json_is_named(answers, says):
    listener, thread, url = raw_server(answers)
    with listener, ew.pool("counter-v0", size=1) as pool:
        agent = ChatAgent(url, "tiny", attempts=1)
        with pytest.raises(ModelError, match=says):
            ew.rollout(pool, agent, episodes=1, progress=False).run()
        thread.join()


@pytest.mark.slow  # waits before it tries again
def test_a_connection_that_is_cut_is_tried_again():
    listener, thread, url = raw_server([CUT, WHOLE])
    with listener, ew.pool("counter-v0", size=1) as pool:
        (episode,) = ew.rollout(pool, ChatAgent(url), episodes=1, progress=False).run()
        thread.join()

    assert episode.reward == 3.0


def test_a_server_that_does_not_answer_in_time_is_named():
    waits = threading.Event()

    def model(messages):
        waits.wait(20)
        return "3"

    with chat_server(model) as server, ew.pool("counter-v0", size=1) as pool:
        agent = ChatAgent(server.base_url, api_key="sk-test", attempts=1, timeout_s=0.1)
        with pytest.raises(ModelError, match="cannot be reached: ReadTimeout"):
            ew.rollout(pool, agent, episodes=1, progress=False).run()
        waits.set()


def test_a_function_replies_in_place_of_a_model():
    def reply(turn):
        assert turn.messages[-1]["role"] == "user"
        return ew.Decision("2", {"seen": len(turn.messages)})

    with ew.pool("counter-v0", size=2, done_at=4) as pool:
        episodes = ew.rollout(pool, ReplyAgent(reply), episodes=2, progress=False).run()

    assert [episode.reward for episode in episodes] == [4.0, 4.0]
    assert [step.extra for step in episodes[0].steps] == [{"seen": 2}, {"seen": 4}]


def test_a_function_replies_for_each_agent_that_must_act():
    def reply(turn):
        board = json.loads(turn.messages[-1]["content"])["board"]
        return str([cell for row in board for cell in row].index(0))

    with ew.pool("tictactoe-v0", size=2) as pool:
        episodes = ew.rollout(pool, ReplyAgent(reply), episodes=2, seed=1, progress=False).run()

    assert all(episode.reward == {"x": 1.0, "o": -1.0} for episode in episodes)


def test_invalid_replies_are_counted_and_truncate_an_episode():
    with ew.pool(Recorder, size=1, kind="guess") as pool:
        agent = ReplyAgent(lambda turn: "hm", max_invalid=3)
        (episode,) = ew.rollout(pool, agent, episodes=1, progress=False).run()

    assert episode.length == 3
    assert episode.metrics == {"invalid_replies": 3}
    assert episode.end.reason == "truncated"
    assert episode.reward == 0.0


def test_a_function_may_end_an_episode():
    with ew.pool(Recorder, size=1, kind="say") as pool:
        agent = ReplyAgent(lambda turn: Truncate("enough"))
        (episode,) = ew.rollout(pool, agent, episodes=1, progress=False).run()

    assert (episode.end.reason, episode.end.cause) == ("truncated", "enough")


def test_the_agent_replies_in_a_conversation_of_the_caller_s():
    async def play(agent):
        async with ew.make_async("counter-v0") as env:
            chat = ew.chat(env)
            result = await chat.reset()
            while not result.done:
                result = await chat.step((await agent.reply(chat.turn())).action)
            return result.reward

    with chat_server(lambda messages: "3") as server:
        assert asyncio.run(play(ChatAgent(server.base_url, api_key="sk-test"))) == 3.0


def test_unknown_options_of_a_conversation_are_refused():
    with pytest.raises(OptionError, match="'sytem' is not an option"):
        ReplyAgent(lambda turn: "hm", sytem="Play.")
