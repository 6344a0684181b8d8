"""What an agent's code may call: functions of the host, and the tools of MCP servers."""

from envweave.tools.episode import ToolEpisode, current_episode
from envweave.tools.registry import ToolRegistry, ToolSource
from envweave.tools.tool import Tool, ToolOutcome

__all__ = [
    "Tool",
    "ToolEpisode",
    "ToolOutcome",
    "ToolRegistry",
    "ToolSource",
    "current_episode",
]
