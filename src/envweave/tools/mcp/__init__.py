"""Tools of MCP servers, over stdio and HTTP."""

from envweave.tools.mcp.servers import McpServers

__all__ = ["McpServers"]
