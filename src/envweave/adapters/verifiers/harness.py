"""A harness for v1 verifiers environments: a chat loop with tools, in this process.

The harnesses of verifiers itself start a process for each segment, and install packages with `uv`.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatHarness", "ChatHarnessConfig"]


class ChatHarnessConfig(vf.HarnessConfig):  # type: ignore[misc] # not installed where mypy runs
    """The options that every harness has."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):  # type: ignore[misc]
    """Calls the model, runs the tools that it calls, and ends with the first reply without any."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Run the chat loop until the model replies without a tool call."""
        del trace, runtime
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with AsyncExitStack() as stack:
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            http = await stack.enter_async_context(
                aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {secret}"},
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
            while True:
                body = {"model": ctx.model, "messages": messages}
                if tools:
                    body["tools"] = tools
                async with http.post(f"{endpoint}/chat/completions", json=body) as response:
                    if response.status != 200:
                        failed = await response.text()
                        return vf.ProgramResult(exit_code=1, stdout="", stderr=failed)
                    message = (await response.json())["choices"][0]["message"]
                messages.append({name: one for name, one in message.items() if one is not None})
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    messages.append(await _call(call, dispatch, connections))


async def _call(
    call: dict[str, Any], dispatch: dict[str, Any], connections: dict[str, Any]
) -> dict[str, Any]:
    """Run one tool call and return its result, or an error message for the model."""
    name = call["function"]["name"]
    try:
        arguments = json.loads(call["function"].get("arguments") or "{}")
    except json.JSONDecodeError as error:
        content: Any = f"error: the arguments are not valid JSON ({error})"
    else:
        if name not in dispatch:
            content = f"error: unknown tool {name!r}; known: {', '.join(dispatch) or 'none'}"
        elif not isinstance(arguments, dict):
            content = "error: the arguments must be a JSON object"
        else:
            content = await call_mcp(connections, dispatch, name, arguments)
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
