"""Answers of models and servers: in several languages, cut off, or missing."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from dataclasses import dataclass

import pytest
from fake_services import Failure, chat_server
from servers import served

import envweave as ew
from envweave.agents import ChatModel, ModelError
from envweave.codeact import NumericMatch
from envweave.examples import code_agent
from envweave.examples.code_agent import ChatCodeAgent


@dataclass
class Typed(ew.Action):
    code: str


class RepeatingEnv(ew.Environment):
    """Shows the code that it was given."""

    def reset(self):
        return "", {}

    def step(self, action: Typed):
        return action.code, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```bash\npip install x\n```\nThen this:\n```python\nx = 1\n```", "x = 1"),
        ("```Python3\nx = 1\n```", "x = 1"),
        ("1. So:\n   ```python\n   if x:\n       y = 1\n   ```", "if x:\n    y = 1"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\r"),
        ("```python\nx = 1```", "x = 1"),
        ("Use ```x``` for that.\n```\ny = 1\n```", "y = 1"),
        ("a\n```python\nx = 1\n```\nb\n```\nx + 1\n```", "x = 1\nx + 1"),
    ],
)
def test_code_is_read_from_fences_of_its_language(answer, code):
    with ew.chat(RepeatingEnv) as chat:
        chat.reset()
        result = chat.step(answer)

    assert result.observation.messages[-1].content == code


@pytest.mark.parametrize("answer", ["no code", "```json\n{}\n```", "```python\nx = 1"])
def test_an_answer_without_code_is_not_an_action(answer):
    with ew.chat(RepeatingEnv) as chat:
        chat.reset()
        result = chat.step(answer)

    assert "There is no block of code in your answer" in result.info["invalid_reply"]


def test_an_agent_plays_at_a_server_given_only_its_url():
    def model(messages):
        seen = messages[-1]["content"]
        code = "final_answer(7)" if "NameError" in seen else "print('hm')\nanswer"
        return f"```python\n{code}\n```"

    async def play(url, agent):
        async with ew.make_async(url) as env:
            result = await env.reset()
            for _ in range(4):
                if result.done:
                    break
                result = await env.step(await agent(result))
            return result.reward

    def make():
        return ew.create_codeact_env(grader=NumericMatch(7))

    with chat_server(model) as server, served(make) as url:
        agent = ChatCodeAgent(ChatModel("tiny", server.base_url, "sk-test"))
        reward = asyncio.run(play(url, agent))

    assert reward == 1.0
    assert "Printed:\nhm" in server.requests[-1]["messages"][-1]["content"]


def test_the_command_shows_an_answer_that_python_does_not(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with chat_server(lambda messages: "```python\nfinal_answer(10 ** 5000)\n```") as server:
        status = code_agent.main(["What?", "--base-url", server.base_url])

    assert status == 0
    assert "Answer: <an answer that cannot be shown" in capsys.readouterr().out


@pytest.mark.slow  # waits for a deadline
def test_a_server_with_an_invalid_retry_after_is_tried_again():
    failures = [Failure(503, "soon", Retry_After="nan")]

    def model(messages):
        if failures:
            raise failures.pop()
        return "yes"

    with chat_server(model) as server:
        reply = ChatModel("tiny", server.base_url, "sk-test", attempts=2).ask_now(
            [{"role": "user", "content": "?"}]
        )

    assert reply == "yes"


class Babble(socketserver.StreamRequestHandler):
    """Answers with invalid HTTP."""

    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"hello\n")


def test_a_server_without_http_is_named():
    with socketserver.TCPServer(("127.0.0.1", 0), Babble) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/v1"
            with pytest.raises(ModelError, match=f"{url} cannot be reached"):
                ChatModel("tiny", url, "sk-test", attempts=1).ask_now([])
        finally:
            server.shutdown()


def test_zero_attempts_are_refused():
    with pytest.raises(ew.errors.OptionError, match="attempts must be >= 1, got 0"):
        ChatModel("tiny", "http://127.0.0.1:1/v1", attempts=0)
