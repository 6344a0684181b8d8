"""Uses MCP servers with whichever version of the SDK its interpreter has; prints the results.

python mcp_client_check.py <python of a server that speaks the newest revision it knows>
"""

import asyncio
import importlib.metadata
import json
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent
sys.path.insert(0, str(PROGRAMS.parents[2] / "src"))

from envweave.tools.mcp import McpServers  # noqa: E402


async def attempt(tool, **arguments):
    try:
        return await tool.function(**arguments)
    except Exception as error:  # noqa: BLE001 - it is printed
        return f"{type(error).__name__}: {error}"


async def main():
    hostile = ["-I", "-S", str(PROGRAMS / "mcp_hostile_server.py")]
    servers = McpServers(
        {
            "mcpServers": {
                "made": {"command": sys.argv[1], "args": [str(PROGRAMS / "mcp_sdk_server.py")]},
                "hostile": {
                    "command": sys.executable,
                    "args": [
                        *hostile,
                        "echo",
                        "data",
                        "ask",
                        "chatter",
                        "flood",
                        "fail",
                        "--page=2",
                    ],
                },
                "mortal": {"command": sys.executable, "args": [*hostile, "die"]},
            }
        }
    )
    try:
        tools = {tool.name: tool for tool in await servers.start()}
        results = {
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
            "die": await attempt(tools["mortal_die"], code=3),
        }
        again = {tool.name: tool for tool in await servers.start()}
        results["again"] = await attempt(again["mortal_die"], code=4)
    finally:
        await servers.close()
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main())
