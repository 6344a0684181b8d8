"""`envweave doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from envweave.cli import arguments, output
from envweave.errors import format_error

if TYPE_CHECKING:
    from envweave.cli.inspect_plugins import PluginStatus

_NOT_FOR_USERS = {"all", "dev", "docs"}
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^]]*])?\s*(?P<bounds>[^;]*)(?:;(?P<only>.*))?$")


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package that envweave needs.

    Attributes:
        name: As it is installed.
        version: The installed one; `None` if there is none.
        problem: Why it is of no use; `None` if it is.
    """

    name: str
    version: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part of envweave.

    Attributes:
        name: As in `envweave[name]`.
        installed: Whether all it needs is there.
        install: The command that installs it.
        needs: What it needs.
    """

    name: str
    installed: bool
    install: str
    needs: list[Dependency]


def doctor_command(json: arguments.Json = False) -> int:
    """Show what this machine can run, and what to install for the rest.

    Exits with 1 if a part of the core or an installed plug-in is broken. An extra that is not
    installed is no fault, nor is a machine that cannot put up the sandbox's walls.
    """
    with output.stdout_reserved(json):
        report = _examine()
    if json:
        output.write_json(report)
    else:
        _print_report(report)
    return 0 if report["ok"] else 1


def _examine() -> dict[str, Any]:
    from envweave import __version__
    from envweave.cli.doctor_sandbox import examine_sandbox
    from envweave.cli.inspect_plugins import look_at_env, look_at_plugin
    from envweave.registry import Registry
    from envweave.registry.plugins import BACKENDS, RESOLVERS, plugin_names

    core, extras = _requirements()
    plugins = {
        "backends": [look_at_plugin(BACKENDS, name) for name in plugin_names(BACKENDS)],
        "schemes": [look_at_plugin(RESOLVERS, name) for name in plugin_names(RESOLVERS)],
        "environments": [look_at_env(spec) for spec in Registry().list()],
    }
    missing = {extra.name: extra.install for extra in extras if not extra.installed}
    report = {kind: [_health(one, missing) for one in found] for kind, found in plugins.items()}
    sound = all(one["status"] != "broken" for found in report.values() for one in found)
    return {
        "ok": sound and all(one.problem is None for one in core),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": _cpus(),
        "envweave": __version__,
        "core": core,
        "extras": extras,
        **report,
        "sandbox": examine_sandbox(),
    }


def _health(found: PluginStatus, missing: dict[str, str]) -> dict[str, Any]:
    """Return a plug-in's state. One named as an extra that is missing waits for that extra."""
    if found.name in missing:
        status, detail = "missing", missing[found.name]
    elif found.error is not None:
        status, detail = "broken", found.error
    else:
        status, detail = "ready", ""
    return {
        "name": found.name,
        "status": status,
        "detail": detail,
        "defined_in": found.defined_in,
    }


def _requirements() -> tuple[list[Dependency], list[Extra]]:
    """Return what the core needs, and each extra, as the installed package declares them."""
    core: list[Dependency] = []
    extras: dict[str, list[Dependency]] = {}
    for requirement in metadata.requires("envweave") or []:
        parsed = _REQUIREMENT.match(requirement)
        assert parsed is not None, requirement
        wanted_by = re.search(r"""extra\s*==\s*['"]([^'"]+)""", parsed["only"] or "")
        if wanted_by is None:
            core.append(_dependency(parsed["name"], parsed["bounds"], load=True))
        elif wanted_by[1] not in _NOT_FOR_USERS:
            needed = _dependency(parsed["name"], parsed["bounds"], load=False)
            extras.setdefault(wanted_by[1], []).append(needed)
    return core, [
        Extra(
            name,
            all(one.problem is None for one in needs),
            f"pip install 'envweave[{name}]'",
            needs,
        )
        for name, needs in sorted(extras.items())
    ]


def _dependency(name: str, bounds: str, *, load: bool) -> Dependency:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Dependency(name, None, "not installed")
    least = re.search(r">=\s*([\d.]+)", bounds)
    if least is not None and _release(version) < _release(least[1]):
        return Dependency(name, version, f"too old; {least[1]} or newer is needed")
    if load:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - somebody's package, as it is imported
            return Dependency(name, version, format_error(error))
    return Dependency(name, version, None)


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without zeros at the end."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _cpus() -> int:
    """Return how many CPUs this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:  # noqa: RET505 - the type checker knows platforms by their branches
        return os.cpu_count() or 1


def _print_report(report: dict[str, Any]) -> None:
    from rich.text import Text

    from envweave.cli.doctor_sandbox import print_sandbox

    where = output.console()
    where.print(
        output.facts(
            [
                ("envweave", report["envweave"]),
                ("python", f"{report['python']} ({report['executable']})"),
                ("platform", report["platform"]),
                ("CPUs", str(report["cpus"])),
            ]
        )
    )
    shown = output.table("", "part", "state")
    for one in report["core"]:
        _add(shown, one.problem is None, f"core: {one.name}", one.problem or one.version)
    for extra in report["extras"]:
        if extra.installed:
            state = ", ".join(f"{one.name} {one.version}" for one in extra.needs)
        else:
            lacking = [f"{one.name} {one.problem}" for one in extra.needs if one.problem]
            state = f"{', '.join(lacking)}\n{extra.install}"
        _add(shown, extra.installed or None, f"extra: {extra.name}", state)
    for kind, word in (("backends", "backend"), ("schemes", "scheme")):
        for one in report[kind]:
            ready = {"ready": True, "missing": None, "broken": False}[one["status"]]
            _add(shown, ready, f"{word}: {one['name']}", one["detail"] or "ready")
    environments = report["environments"]
    ready_names = [one["name"] for one in environments if one["status"] == "ready"]
    _add(shown, True, "environments", f"{len(ready_names)} ready; see `envweave list`")
    for one in environments:
        if one["status"] != "ready":
            ready = None if one["status"] == "missing" else False
            _add(shown, ready, f"environment: {one['name']}", one["detail"])
    output.print_table("What this machine can run", shown)
    print_sandbox(report["sandbox"])
    where.print()
    verdict = "Ready." if report["ok"] else "Something is broken; see above."
    where.print(Text(verdict, style="bold green" if report["ok"] else "bold red"))


def _add(shown: Any, ready: bool | None, part: str, state: str | None) -> None:
    """Add a row: ready, broken, or, with `None`, not installed."""
    from rich.text import Text

    if output.console().options.ascii_only:
        marks = {True: "ok", False: "BROKEN", None: "-"}
    else:
        marks = {True: "✓", False: "✗", None: "–"}
    style = {True: "green", False: "red", None: "yellow"}[ready]
    shown.add_row(Text(marks[ready], style=style), part, state or "")
