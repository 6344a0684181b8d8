"""`create_codeact_env` and `create_mcp_environment`: environments for agents that write code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from envweave.codeact.environment import CodeActEnvironment, GradeWhen
from envweave.codeact.executors.base import Executor
from envweave.codeact.executors.sandbox import SandboxOptions
from envweave.codeact.grading.base import Grader
from envweave.codeact.injected.files import FILE_TOOLS
from envweave.errors import OptionError, suggest
from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.host.packages import (
    AnyPackages,
    calling_module,
    defining_modules,
    read_packages,
)
from envweave.sandbox.limits import Limits
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

    Use it as it is: `reset` and `step` return observations, and `transform` may be set at any
    time. The first `step` starts an episode if `reset` was not called, unless there are `tasks`.
    Or give it to `make`, `register` or `create_fastapi_app`, where every episode needs a `reset`.

    Args:
        executor: What runs the code. `"sandbox"`: behind kernel-enforced walls. `"docker"`: in a
            container, and behind walls inside it, on machines whose own kernel has none, such as a
            Mac. `"smolagents"`: the interpreter of that library, in this process; its authors say
            that it is no security boundary. `"inproc"`: this very process, with no walls at all.
            Or one that you made, such as `DockerExecutor(image=…, limits=…)`, which has its own
            options.
        tools: What code may call: a `ToolRegistry`, functions, or functions by name.
        files: Whether `file_read`, `file_write` and their kind are among it.
        transform: Applied to every observation.
        limits: What code may use; a `Limits`, or its fields.
        preload: Modules that every session finds imported.
        packages: The installed packages that code can import and read, besides the standard
            library, numpy and what `preload` names; see `Sandbox`. What defines the environment is
            never among them, not even with `"all"`.
        profile: `"shell"` lets code also run programs, inside the same walls.
        isolation: The walls; see `Sandbox`. With `"docker"`, those inside the container.
        visible: Files and folders of the host that code may read; in a container, none.
        grader: Judges what the agent hands in.
        grade: When it does; see `CodeActEnvironment`.
        tasks: What episodes can be about.
        fatal_reward: What a step earns whose code ended its session.

    Raises:
        IsolationError: This machine cannot put up the walls; the message says what to do.
        StartupError: There is no container engine that answers, or no image; the same.
        MissingExtraError: The executor needs a library that is not installed.
        OptionError: An option is not sound, or the executor does not know it.
    """
    source = getattr(tasks, "source", None)
    options = SandboxOptions(
        limits=Limits() if limits is None else _limits(limits),
        preload=_names("preload", preload),
        packages=read_packages(packages),
        private=(*calling_module(), *defining_modules(transform, grader, tasks, source)),
        profile=profile,
        isolation=isolation,
        visible=tuple(os.fspath(one) for one in _names("visible", visible)),
    )
    if isinstance(executor, Executor):
        _refuse_any(executor, options)
    else:
        executor = make_executor(executor, options)
    return DirectEnvironment(
        CodeActEnvironment(
            executor,
            tools=tools,
            files=files,
            transform=transform,
            grader=grader,
            grade=grade,
            tasks=tasks,
            fatal_reward=fatal_reward,
        ),
        reset_on_first_step=True,
    )


def make_executor(name: str, options: SandboxOptions) -> Executor:
    """Return the executor of this name.

    Raises:
        OptionError: There is none, or it does not know an option.
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
            f"executor={name!r} is none of {', '.join(map(repr, EXECUTORS))}."
            f"{suggest(str(name), EXECUTORS)}"
        )
    _refuse_walls(name, options)
    if name == "smolagents":
        from envweave.codeact.executors.smolagents import SmolagentsExecutor

        return SmolagentsExecutor(options.limits)
    from envweave.codeact.executors.inproc import InprocExecutor

    return InprocExecutor(options.limits)


def _refuse_any(executor: Executor, options: SandboxOptions) -> None:
    """Refuse what came too late for an executor that is made already."""
    plain = SandboxOptions()
    for field in ("limits", "preload", "packages", "profile", "isolation", "visible"):
        if getattr(options, field) != getattr(plain, field):
            raise OptionError(
                f"{field}=… came too late: executor={executor.name!r} is made already. Give it to "
                f"the {type(executor).__name__} itself."
            )


def _refuse_walls(name: str, options: SandboxOptions) -> None:
    """Refuse what only the sandbox can honour, here or in a container."""
    plain = SandboxOptions(limits=options.limits)
    for field in ("preload", "packages", "profile", "isolation", "visible"):
        if getattr(options, field) != getattr(plain, field):
            others = "" if field == "visible" else " and executor='docker'"
            raise OptionError(
                f"{field}={getattr(options, field)!r} is for executor='sandbox'{others}; {name!r} "
                "has no such thing. Leave it out."
            )


def _limits(given: Limits | Mapping[str, Any]) -> Limits:
    if isinstance(given, Limits):
        return given
    if not isinstance(given, Mapping):
        raise OptionError(f"limits={given!r}: expected Limits, or its fields by name.")
    known = list(Limits.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise OptionError(f"limits: there is no {name!r}.{suggest(str(name), known)}")
    return Limits(**given)


def _names(option: str, given: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        raise OptionError(f"{option}={given!r}: expected a list of them.")
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
