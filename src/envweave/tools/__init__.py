"""What an agent's code may call: functions of the host, and the tools of MCP servers."""

from envweave.tools.calling import ToolOutcome
from envweave.tools.registry import ToolRegistry
from envweave.tools.sources import ToolSource
from envweave.tools.tool import Tool

__all__ = ["Tool", "ToolOutcome", "ToolRegistry", "ToolSource"]
