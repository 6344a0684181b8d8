"""The official client of the Open Reward Standard. Run in its virtual environment.

usage: openreward_peer.py URL TOKEN SPLIT INDEX CALLS

Plays an episode, and prints what the client saw as JSON. CALLS are `[tool, arguments]`; the tool
`null` is the first one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from openreward import OpenReward


def shown(output: Any) -> dict[str, Any]:
    return {
        "text": "".join(block.text for block in output.blocks if block.type == "text"),
        "images": [block.mimeType for block in output.blocks if block.type == "image"],
        "reward": output.reward,
        "finished": output.finished,
        "metadata": output.metadata,
    }


def main(url: str, token: str, split: str, index: str, calls: str) -> dict[str, Any]:
    client = OpenReward(api_key=token)
    env = client.environments.get("env", base_url=url)
    tasks = env.get_task_range(split, 0, 2)
    seen: dict[str, Any] = {
        "splits": env.list_splits(),
        "num_tasks": env.num_tasks(split),
        "listed": len(env.list_tasks(split)),
        "tasks": [one.task_spec for one in tasks],
        "task": env.get_task(split, int(index)).task_spec,
        "tools": env.list_tools(format="openai"),
        "score_group": env.supports_score_group(),
        "terminal": env.is_assistant_message_final(),
    }
    name = env.list_tools()[0].name
    with env.session(split=split, index=int(index)) as session:
        seen["version"] = session.version()
        seen["session_tools"] = [one.name for one in session.list_tools()]
        seen["prompt"] = "".join(block.text for block in session.get_prompt())
        seen["messages"] = session.get_messages(format="openai")
        seen["results"] = results = []
        for tool, arguments in json.loads(calls):
            try:
                results.append(shown(session.call_tool(tool or name, arguments)))
            except Exception as error:  # noqa: BLE001 - reported to the test
                results.append({"error": type(error).__name__, "text": str(error)})
    with env.session(task=tasks[0]) as session:
        seen["by_task"] = "".join(block.text for block in session.get_prompt())
    return seen


if __name__ == "__main__":
    answer = main(*sys.argv[1:])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # its threads wait for the platform
