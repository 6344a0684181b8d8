"""`create_codeact_env` and `create_mcp_environment`: environments for agents that write code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from envweave.codeact.environment import CodeActEnvironment, GradeWhen
from envweave.codeact.executors.base import Executor
from envweave.codeact.executors.sandbox import SandboxOptions
from envweave.codeact.grading.base import Grader
from envweave.codeact.injected.prelude import FILE_TOOLS
from envweave.errors import OptionError, suggest
from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.execution import Limits
from envweave.sandbox.host.packages import (
    AnyPackages,
    calling_module,
    defining_modules,
    read_packages,
)
from envweave.session import DirectEnvironment
from envweave.tools import ToolRegistry
from envweave.tools.mcp.config import AnyConfig
from envweave.tools.mcp.servers import McpServers
from envweave.types import Observation, Tasks

EXECUTORS = ("sandbox", "docker", "smolagents", "inproc")

AnyTools = ToolRegistry | Mapping[str, Callable[..., Any]] | Iterable[Any]


def create_codeact_env(
    *,
    executor: str | Executor = "sandbox",
    tools: AnyTools | None = None,
    files: bool = False,
    transform: Callable[[Observation], Observation] | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    preload: Iterable[str] = (),
    packages: AnyPackages = None,
    profile: Profile = "python",
    isolation: WantedIsolation = "auto",
    visible: Iterable[str | os.PathLike[str]] = (),
    grader: Grader | None = None,
    grade: GradeWhen = "final",
    tasks: Tasks | None = None,
    fatal_reward: float = 0.0,
) -> DirectEnvironment:
    """Return an environment whose actions are Python code.

    Use it directly: `reset` and `step` return observations, and `transform` may be set at any
    time. The first `step` starts an episode if `reset` was not called, unless there are `tasks`.
    Or pass it to `make`, `register` or `create_fastapi_app`, where every episode needs a `reset`.

    Args:
        executor: What runs the code. `"sandbox"`: isolated by the kernel. `"docker"`: in a
            container, and isolated inside it, for machines whose own kernel cannot isolate, such
            as a Mac. `"smolagents"`: the interpreter of that library, in a thread
            of this process. `"inproc"`: Python, in a thread of this process. Neither of these two
            is a security boundary. Or an executor that you made, such as
            `DockerExecutor(image=…, limits=…)`, which has its own options.
        tools: What code may call: a `ToolRegistry`, functions, or functions by name.
        files: Whether the file tools (`file_read`, `file_write`, …) are added.
        transform: Applied to every observation.
        limits: What code may use; a `Limits`, or its fields.
        preload: Modules that are imported before a session starts.
        packages: The installed packages that code can import and read, besides the standard
            library, numpy and those in `preload`; see `Sandbox`. Packages that define the
            environment are never among them, not even with `"all"`.
        profile: `"shell"` also lets code run programs, with the same isolation.
        isolation: See `Sandbox`. With `"docker"`, the isolation inside the container.
        visible: Files and folders of the host that code may read; not with `"docker"`.
        grader: Grades what the agent submits.
        grade: When to grade; see `CodeActEnvironment`.
        tasks: The tasks of episodes.
        fatal_reward: The reward of a step whose code ended its session.

    Raises:
        IsolationError: This machine cannot provide the isolation; the message says what to do.
        StartupError: No container engine answers, or the image is missing.
        MissingExtraError: The executor needs a library that is not installed.
        OptionError: An option is invalid, or the executor does not support it.
    """
    source = getattr(tasks, "source", None)
    options = SandboxOptions(
        limits=read_limits(limits),
        preload=_names("preload", preload),
        packages=read_packages(packages),
        private=(*calling_module(), *defining_modules(transform, grader, tasks, source)),
        profile=profile,
        isolation=isolation,
        visible=tuple(os.fspath(one) for one in _names("visible", visible)),
    )
    if isinstance(executor, Executor):
        _refuse_any(executor, options)
    tools = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)

    def make_environment() -> CodeActEnvironment:
        made = executor if isinstance(executor, Executor) else make_executor(executor, options)
        return CodeActEnvironment(
            made,
            tools=tools,
            files=files,
            transform=transform,
            grader=grader,
            grade=grade,
            tasks=tasks,
            fatal_reward=fatal_reward,
        )

    again = None if isinstance(executor, Executor) else make_environment
    return DirectEnvironment(make_environment(), reset_on_first_step=True, again=again)


def make_executor(name: str, options: SandboxOptions) -> Executor:
    """Return the executor of this name.

    Raises:
        OptionError: There is none, or it does not support an option.
        EnvWeaveError: It cannot run here; the message says what to do.
    """
    if name == "sandbox":
        from envweave.codeact.executors.sandbox import SandboxExecutor

        return SandboxExecutor(options)
    if name == "docker":
        from envweave.codeact.executors.docker.executor import DockerExecutor, refuse_visible

        refuse_visible(options.visible)
        return DockerExecutor(
            limits=options.limits,
            preload=options.preload,
            packages=options.packages,
            profile=options.profile,
            isolation=options.isolation,
        )
    if name not in EXECUTORS:
        raise OptionError(
            f"executor must be one of {', '.join(map(repr, EXECUTORS))}, got {name!r}."
            f"{suggest(str(name), EXECUTORS)}"
        )
    _refuse_walls(name, options)
    if name == "smolagents":
        from envweave.codeact.executors.smolagents import SmolagentsExecutor

        return SmolagentsExecutor(options.limits)
    from envweave.codeact.executors.inproc import InprocExecutor

    return InprocExecutor(options.limits)


def _refuse_any(executor: Executor, options: SandboxOptions) -> None:
    """Refuse options that have no effect on an existing executor."""
    plain = SandboxOptions()
    for field in ("limits", "preload", "packages", "profile", "isolation", "visible"):
        if getattr(options, field) != getattr(plain, field):
            raise OptionError(
                f"{field}=… has no effect on an existing executor ({executor.name!r}). Pass it to "
                f"{type(executor).__name__}(…) instead."
            )


def _refuse_walls(name: str, options: SandboxOptions) -> None:
    """Refuse options that only the sandbox supports, here or in a container."""
    plain = SandboxOptions(limits=options.limits)
    for field in ("preload", "packages", "profile", "isolation", "visible"):
        if getattr(options, field) != getattr(plain, field):
            others = "" if field == "visible" else " and executor='docker'"
            raise OptionError(
                f"{field}={getattr(options, field)!r} is only supported by executor='sandbox'"
                f"{others}, not by {name!r}."
            )


def read_limits(given: Limits | Mapping[str, Any] | None) -> Limits:
    """Return the limits that an option gives; the defaults for `None`.

    Raises:
        OptionError: They are invalid.
    """
    if given is None or isinstance(given, Limits):
        return given or Limits()
    if not isinstance(given, Mapping):
        raise OptionError(f"limits must be Limits or a dict of its fields, got {given!r}.")
    known = list(Limits.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise OptionError(f"limits has no field {name!r}.{suggest(str(name), known)}")
    return Limits(**given)


def _names(option: str, given: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        raise OptionError(f"{option} must be a list, got {given!r}.")
    return tuple(given)


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
    `file_exists` and `file_delete`. They use the same files as the code itself: those of the
    session, including `/tmp`.

    With `servers` they are the tools of MCP servers, as functions with docstrings. The servers
    are started for the first episode, and kept for later ones. A tool that fails raises
    `ToolError` in the code. Every call is recorded in the step's `execution_result.tool_calls`.

    Args:
        servers: `{"mcpServers": {name: {"command": …} or {"url": …}}}`, the path of a JSON file
            that contains it, or an `McpServers`. Environments do not share servers.
        files: Whether to add the file tools. Default: if there are no servers.
        allow: The names of the tools that code may call, of `servers` and `tools`; default: all.
            Does not apply to the file tools.
        max_calls: The total number of calls of these tools in an episode.
        **options: See `create_codeact_env`; `tools` may add functions.

    Raises:
        MissingExtraError: The MCP SDK is not installed, and there are servers.
        OptionError: The configuration or another option is invalid.
    """
    tools = options.pop("tools", None)
    if isinstance(tools, ToolRegistry):
        raise OptionError(
            "create_mcp_environment creates its own ToolRegistry, so `tools` must be functions. To "
            "use yours, call registry.add_source(McpServers(…)) and create_codeact_env(tools=…)."
        )
    has_own = servers is not None or tools is not None
    allow = _check_allow(allow, max_calls, has_own=has_own)
    registry = ToolRegistry(tools, allow=allow, max_calls=max_calls)
    if servers is not None:
        registry.add_source(servers if isinstance(servers, McpServers) else McpServers(servers))
    with_files = servers is None if files is None else files
    return create_codeact_env(tools=registry, files=with_files, **options)


def _check_allow(
    allow: Iterable[str] | None, max_calls: int | None, *, has_own: bool
) -> list[str] | None:
    """Refuse `allow` and `max_calls` if there are only file tools."""
    if not has_own and (allow is not None or max_calls is not None):
        which = "allow" if allow is not None else "max_calls"
        raise OptionError(
            f"{which} applies to the tools of `servers` and `tools`, and there are none. To limit "
            "the calls of a step, pass limits={'tool_calls': …}."
        )
    if allow is None:
        return None
    if isinstance(allow, str | bytes):
        raise OptionError(f"allow must be a list of names, got {allow!r}.")
    names = list(allow)
    for name in names:
        if name in FILE_TOOLS:
            raise OptionError(
                f"allow=[{name!r}, …]: file tools are added together. Pass files=True for "
                "all of them, or files=False for none."
            )
    return names
