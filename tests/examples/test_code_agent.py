"""An agent that asks a model for code, against a server with the chat protocol."""

from __future__ import annotations

import asyncio

import pytest
from fake_services import Failure, chat_server

import envweave as ew
from envweave.agents import ChatModel, ModelError
from envweave.codeact import NumericMatch
from envweave.examples import code_agent
from envweave.examples.code_agent import ChatCodeAgent

MENDED = """I forgot to define it.
```python
n = 20
fib = lambda n: n if n < 2 else fib(n - 1) + fib(n - 2)
final_answer(fib(n))
```"""


def forgetful(messages):
    """Forget a name, see the error, and mend it."""
    if "NameError" in messages[-1]["content"]:
        return MENDED
    return "Let me see.\n```python\nfinal_answer(fib(n))\n```"


def play(agent, task, **options):
    async def main():
        env = ew.make_async(ew.create_codeact_env(**options), max_episode_steps=6)
        async with env:
            result = await env.reset(task=task)
            while not result.done:
                result = await env.step(await agent(result))
            return result

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


FIB = ew.Task(
    "fib", data={"prompt": "What is the 20th Fibonacci number?"}, private={"answer": 6765}
)


def test_a_model_mends_its_code_from_the_error_it_is_shown():
    with chat_server(forgetful) as server:
        agent = ChatCodeAgent(ChatModel("tiny", server.base_url, "sk-test"))

        result = play(agent, FIB, grader=NumericMatch(from_task="answer"))

    assert (result.terminated, result.reward) == (True, 1.0)
    assert [message["role"] for message in server.requests[-1]["messages"]] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip
    assert server.requests[0]["messages"][1]["content"] == FIB.data["prompt"]
    assert "- final_answer" in server.requests[0]["messages"][0]["content"]
    assert "6765" not in str(server.requests)


def test_one_agent_plays_many_episodes_at_once_without_mixing_them_up():
    def model(messages):
        return f"```python\nfinal_answer({messages[1]['content'].split()[-1]})\n```"

    tasks = [
        ew.Task(f"t{i}", data={"prompt": f"Say {i}"}, private={"answer": i}) for i in range(12)
    ]

    def make():
        return ew.create_codeact_env(grader=NumericMatch(from_task="answer"))

    with chat_server(model) as server, ew.pool(make, size=4) as pool:
        agent = ChatCodeAgent(ChatModel("tiny", server.base_url, "sk-test"))
        episodes = ew.rollout(pool, agent, tasks=tasks, progress=False).run()

    assert [episode.reward for episode in episodes] == [1.0] * 12


def test_an_answer_without_code_gets_an_error_message_and_another_try():
    def model(messages):
        if "no block of code" in messages[-1]["content"]:
            return "```python\nfinal_answer(1)\n```"
        return "The answer is 1."

    with chat_server(model) as server:
        agent = ChatCodeAgent(ChatModel("tiny", server.base_url, "sk-test"))

        result = play(agent, ew.Task("one", data={"prompt": "1?"}), grader=NumericMatch(1))

    assert result.reward == 1.0


def test_a_model_that_never_writes_code_costs_steps_and_not_the_program():
    with chat_server(lambda messages: "I would rather not.") as server:
        agent = ChatCodeAgent(ChatModel("tiny", server.base_url, "sk-test"), max_invalid=2)

        result = play(agent, ew.Task("one", data={"prompt": "1?"}), grader=NumericMatch(1))

    assert (result.truncated, result.reward, result.step_index) == (True, None, 6)
    assert len(server.requests) == 12


def test_a_busy_server_is_tried_again():
    failures = [Failure(429, "slow down", Retry_After="0"), Failure(503, "soon", Retry_After="0")]

    def model(messages):
        if failures:
            raise failures.pop()
        return "hello"

    with chat_server(model) as server:
        reply = ChatModel("tiny", server.base_url, "sk-test").ask_now(
            [{"role": "user", "content": "hi"}]
        )

    assert reply == "hello"


@pytest.mark.parametrize(
    ("model", "api_key", "says"),
    [
        (lambda messages: "hi", "sk-wrong", "401: Incorrect API key"),
        (lambda messages: {"choices": []}, "sk-test", "not a chat completion"),
        (
            lambda messages: {"choices": [{"message": {"content": 7}}]},
            "sk-test",
            "must be a str, got int",
        ),
    ],
)
def test_an_invalid_answer_is_a_readable_error(model, api_key, says):
    with chat_server(model) as server:
        asked = ChatModel("tiny", server.base_url, api_key)

        with pytest.raises(ModelError, match=says):
            asked.ask_now([{"role": "user", "content": "hi"}])


def test_a_missing_server_is_named():
    with chat_server(lambda messages: "hi") as server:
        url = server.base_url

    with pytest.raises(ModelError, match="cannot be reached"):
        ChatModel("tiny", url, attempts=1).ask_now([{"role": "user", "content": "hi"}])


def test_a_model_without_a_server_is_refused_with_the_missing_options():
    with pytest.raises(ew.errors.OptionError, match="OPENAI_BASE_URL"):
        ChatModel("tiny")


def test_a_key_does_not_show():
    assert "sk-secret" not in repr(ChatModel("tiny", "http://127.0.0.1:1/v1", "sk-secret"))


def test_the_command_solves_a_task_and_shows_the_steps(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with chat_server(forgetful) as server:
        code = code_agent.main(["What is it?", "--base-url", server.base_url])

    printed = capsys.readouterr().out
    assert code == 0
    assert "NameError: name 'fib' is not defined" in printed
    assert printed.endswith("Answer: 6765\n")


def test_the_command_without_a_server_prints_the_missing_options(capsys):
    assert code_agent.main(["What is it?"]) == 1
    assert "Pass one such as" in capsys.readouterr().err


def test_long_output_is_shown_with_its_middle_left_out():
    result = ew.ExecutionResult(success=True, stdout="a" * 5000 + "z")

    text = ew.CodeObservation(execution_result=result, code="print(…)").render()

    assert "1001 characters omitted" in text
    assert text.endswith("z")
