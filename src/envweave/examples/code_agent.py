"""An agent that writes code: `python -m envweave.examples.code_agent "What is 21 * 2?"`.

It asks a model behind any OpenAI-compatible server for Python code, runs the code in the sandbox,
and shows the model its output, until the code calls `final_answer`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import OrderedDict

import envweave as ew
from envweave.agents import ChatModel, Message, ModelError
from envweave.codeact import Attempt, Grade, Grader
from envweave.codeact.models import SHOWN, shown_to_model
from envweave.conversation.replies import NO_CODE, code_in

SYSTEM = """You solve tasks by writing Python code.

Answer with one block of code between ```python and ```. It is run, and you see what it printed,
the value of its last expression, and its error if it has one. Variables persist from one block to
the next. Besides Python's own functions you can call these; help(name) shows how:

{tools}

When you know the answer, call final_answer(answer) in your code."""

_CONVERSATIONS = 4_096


class ChatCodeAgent:
    """Gets the next code from a model. One agent can play any number of episodes concurrently.

    Pass it to `rollout`, or call it with the last result yourself: it returns a `CodeAction`.

    Args:
        model: The model.
        max_invalid: How often per step the model may answer without code. It gets an error
            message and another try; after that an empty step is taken.
        system: The first message. `{tools}` in it is replaced by the available tools.
    """

    def __init__(self, model: ChatModel, *, max_invalid: int = 3, system: str = SYSTEM) -> None:
        self.model = model
        self.max_invalid = max_invalid
        self.system = system
        self._conversations: OrderedDict[str, list[Message]] = OrderedDict()

    async def __call__(self, result: ew.StepResult[ew.CodeObservation]) -> ew.CodeAction:
        """Return the model's next code."""
        messages = self._conversation(result)
        for _ in range(self.max_invalid):
            answer = await self.model.ask(messages)
            messages.append({"role": "assistant", "content": answer})
            code = code_in(answer)
            if code is not None:
                return ew.CodeAction(code)
            messages.append({"role": "user", "content": NO_CODE})
        return ew.CodeAction("")

    def _conversation(self, result: ew.StepResult[ew.CodeObservation]) -> list[Message]:
        observation, episode = result.current, str(result.episode_id)
        messages = self._conversations.get(episode)
        if messages is None:
            tools = "\n".join(f"- {name}" for name in observation.available_tools) or "- nothing"
            messages = self._conversations[episode] = [
                {"role": "system", "content": self.system.replace("{tools}", tools)},
                {"role": "user", "content": observation.prompt},
            ]
            if len(self._conversations) > _CONVERSATIONS:
                self._conversations.popitem(last=False)
        else:
            shown = shown_to_model(observation.execution_result)
            messages.append({"role": "user", "content": shown})
        return messages


class AnyAnswer(Grader):
    """Ends the episode at the first answer, and shows it; for tasks without a known answer."""

    async def grade(self, attempt: Attempt) -> Grade:
        """Accept any answer."""
        try:
            answer = repr(attempt.answer)[:SHOWN]
        except ValueError as error:  # an int of too many digits
            answer = f"<an answer that cannot be shown: {error}>"
        return Grade(0.0, passed=True, details={"answer": answer})


def main(argv: list[str] | None = None) -> int:
    """Let a model solve one task, and print every step. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envweave.examples.code_agent",
        description="Let a model solve a task by writing code, in the sandbox.",
    )
    parser.add_argument("task", help="the task, in words")
    parser.add_argument("--model", default="default", metavar="NAME")
    parser.add_argument("--base-url", default="", metavar="URL", help="or $OPENAI_BASE_URL")
    parser.add_argument("--max-steps", type=int, default=10, metavar="N")
    parser.add_argument("--files", action="store_true", help="let code use the file tools")
    arguments = parser.parse_args(argv)
    try:
        return asyncio.run(_solve(arguments))
    except (ModelError, ew.errors.OptionError, ew.errors.IsolationError) as error:
        sys.stderr.write(f"code_agent: {error}\n")
        return 1


async def _solve(arguments: argparse.Namespace) -> int:
    agent = ChatCodeAgent(ChatModel(arguments.model, arguments.base_url))
    task = ew.Task("asked", data={"prompt": arguments.task})
    made = ew.create_codeact_env(grader=AnyAnswer(), files=arguments.files)
    async with ew.make_async(made, max_episode_steps=arguments.max_steps) as env:
        result: ew.StepResult[ew.CodeObservation] = await env.reset(task=task)
        while not result.done:
            action = await agent(result)
            sys.stdout.write(f"── step {result.step_index + 1}\n{action.code}\n")
            result = await env.step(action)
            shown = shown_to_model(result.observation.execution_result)
            sys.stdout.write(f"── shows\n{shown}\n")
    if "grade" not in result.info:
        sys.stdout.write(f"No answer within {result.step_index} steps.\n")
        return 1
    sys.stdout.write(f"Answer: {result.info['grade']['answer']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
