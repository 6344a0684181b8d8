"""`create_mcp_environment`: an environment whose code has file tools, or those of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envweave.codeact.creating import create_codeact_env
from envweave.codeact.files import FILE_TOOLS
from envweave.errors import OptionError
from envweave.session import DirectEnvironment
from envweave.tools import ToolRegistry
from envweave.tools.mcp_config import AnyConfig
from envweave.tools.mcp_servers import McpServers


def create_mcp_environment(
    servers: AnyConfig | McpServers | None = None,
    *,
    files: bool | None = None,
    allow: Iterable[str] | None = None,
    max_calls: int | None = None,
    **options: Any,
) -> DirectEnvironment:
    """Return an environment whose actions are Python code, with tools for it to call.

    Without `servers` these are `file_read`, `file_write`, `file_append`, `file_list`,
    `file_exists` and `file_delete`. They see the files that the code itself sees: the session's
    own, where `/tmp/hello.txt` is nobody else's.

    With `servers` they are the tools of MCP servers, as functions with docstrings. The servers
    are started for the first episode, and kept for the others. A tool that fails raises
    `ToolError` in the code. Every call is in the step's `execution_result.tool_calls`.

    Args:
        servers: `{"mcpServers": {name: {"command": …} or {"url": …}}}`, the path of a JSON file
            that holds it, or an `McpServers`. No two environments share servers.
        files: Whether the file tools are among the tools. By default, if there are no servers.
        allow: The tools that code may call, of those of the servers and of `tools`; by default
            all. The file tools are not meant.
        max_calls: How often these may be called in an episode, all together.
        **options: Those of `create_codeact_env`; `tools` may add functions.

    Raises:
        MissingExtraError: The MCP SDK is not installed, and there are servers.
        OptionError: The configuration or another option is not sound.
    """
    tools = options.pop("tools", None)
    if isinstance(tools, ToolRegistry):
        raise OptionError(
            "create_mcp_environment makes a ToolRegistry of its own, so `tools` are functions. "
            "For yours, use registry.add_source(McpServers(…)) and create_codeact_env(tools=…)."
        )
    has_own = servers is not None or tools is not None
    allow = _checked(allow, max_calls, has_own=has_own)
    registry = ToolRegistry(tools, allow=allow, max_calls=max_calls)
    if servers is not None:
        registry.add_source(servers if isinstance(servers, McpServers) else McpServers(servers))
    with_files = servers is None if files is None else files
    return create_codeact_env(tools=registry, files=with_files, **options)


def _checked(
    allow: Iterable[str] | None, max_calls: int | None, *, has_own: bool
) -> list[str] | None:
    """Refuse limits on the file tools, which they do not reach."""
    if not has_own and (allow is not None or max_calls is not None):
        which = "allow" if allow is not None else "max_calls"
        raise OptionError(
            f"{which} is for the tools of `servers` and `tools`, and there are none. To limit the "
            "calls of a step, give limits={'tool_calls': …}."
        )
    if allow is None:
        return None
    if isinstance(allow, str | bytes):
        raise OptionError(f"allow={allow!r}: expected a list of names.")
    names = list(allow)
    for name in names:
        if name in FILE_TOOLS:
            raise OptionError(
                f"allow=[{name!r}, …]: the file tools come together. Give files=True for all of "
                "them, or files=False for none."
            )
    return names
