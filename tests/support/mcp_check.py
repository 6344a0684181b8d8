"""Uses MCP servers with whichever version of the SDK its interpreter has; prints what came of it.

python mcp_check.py <python of a server that speaks the newest revision it knows>
"""

import asyncio
import importlib.metadata
import json
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent
sys.path.insert(0, str(SUPPORT.parents[1] / "src"))

from envweave.tools.mcp import McpServers  # noqa: E402


async def attempt(tool, **arguments):
    try:
        return await tool.function(**arguments)
    except Exception as error:  # noqa: BLE001 - it is printed
        return f"{type(error).__name__}: {error}"


async def main():
    wild = ["-I", "-S", str(SUPPORT / "mcp_wild.py")]
    servers = McpServers(
        {
            "mcpServers": {
                "made": {"command": sys.argv[1], "args": [str(SUPPORT / "mcp_serving.py")]},
                "wild": {
                    "command": sys.executable,
                    "args": [*wild, "echo", "data", "ask", "chatter", "flood", "fail", "--page=2"],
                },
                "doomed": {"command": sys.executable, "args": [*wild, "die"]},
            }
        }
    )
    try:
        tools = {tool.name: tool for tool in await servers.start()}
        told = {
            "sdk": importlib.metadata.version("mcp").partition(".")[0],
            "protocols": servers.protocols,
            "tools": list(tools),
            "add": await attempt(tools["add"], a=1),
            "bad arguments": (await attempt(tools["add"], a="x")).partition("\n")[0],
            "echo": await attempt(tools["echo"], text="hi", more=None),
            "data": await attempt(tools["data"]),
            "ask": await attempt(tools["ask"], method="roots/list"),
            "chatter": await attempt(tools["chatter"]),
            "flood": await attempt(tools["flood"], lines=100),
            "fail": await attempt(tools["fail"]),
            "die": await attempt(tools["doomed_die"], code=3),
        }
        again = {tool.name: tool for tool in await servers.start()}
        told["again"] = await attempt(again["doomed_die"], code=4)
    finally:
        await servers.close()
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
