"""An MCP server made with the SDK, whichever major version of it is installed.

Run by itself it serves over stdin and stdout, or with `--http` or `--sse` on a port of the loopback
interface, which it prints.
"""

import argparse
import os
import socket
import sys

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

app = MCPServer("made with the SDK")


@app.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
async def shout(text: str) -> str:
    """Say it louder."""
    if not text:
        raise ValueError("there is nothing to say")
    return text.upper()


@app.tool()
def die(code: int) -> str:
    """End the server."""
    os._exit(code)


def serve(web, key, port):
    import uvicorn

    async def guarded(scope, receive, send):
        """Let pass only those who know the key."""
        if scope["type"] == "http" and key:
            headers = dict(scope["headers"])
            if headers.get(b"authorization") != f"Bearer {key}".encode():
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"who are you?"})
                return
        await web(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", port))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(guarded, log_level="error", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--sse", action="store_true")
    parser.add_argument("--key")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.http:
        serve(app.streamable_http_app(), options.key, options.port)
    elif options.sse:
        serve(app.sse_app(), options.key, options.port)
    else:
        app.run(transport="stdio")


if __name__ == "__main__":
    sys.exit(main())
