"""What an agent's code may call: functions of the host, and the tools of MCP servers."""

from envweave.tools.registry import ToolRegistry

__all__ = ["ToolRegistry"]
