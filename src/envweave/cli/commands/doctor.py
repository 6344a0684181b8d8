"""`envweave doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from envweave.cli import arguments, output
from envweave.errors import EnvWeaveError, format_error

if TYPE_CHECKING:
    from rich.table import Table

    from envweave.cli.inspect_plugins import PluginStatus
    from envweave.ray.status import ClusterStatus
    from envweave.sandbox import TierReport


PROBE_S = 5.0
"""How long a Docker engine or a cluster may take to answer before it counts as unavailable."""

_NOT_FOR_USERS = {"all", "dev", "docs"}
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^]]*])?\s*(?P<bounds>[^;]*)(?:;(?P<only>.*))?$")


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package that envweave needs.

    Attributes:
        name: Name of the distribution.
        version: The installed version; `None` if it is not installed.
        problem: Why it cannot be used; `None` if it can.
    """

    name: str
    version: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part of envweave.

    Attributes:
        name: As in `envweave[name]`.
        installed: Whether all its dependencies are installed.
        install: The command that installs it.
        needs: Its dependencies.
    """

    name: str
    installed: bool
    install: str
    needs: list[Dependency]


def doctor_command(json: arguments.Json = False) -> int:
    """Show what this machine can run, and what to install for the rest.

    The Docker engine, the Kubernetes cluster and a Ray cluster that is running are contacted, for a
    few seconds at most.

    Exits with 1 if a part of the core or an installed plug-in is broken. A missing extra, Docker
    engine, cluster or sandbox is reported but is not an error.
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
    from envweave.cli.inspect_plugins import inspect_env, inspect_plugin
    from envweave.registry import Registry
    from envweave.registry.plugins import BACKENDS, RESOLVERS, plugin_names

    probes = {name: _Probe(check) for name, check in _CHECKS.items()}
    core, extras = _requirements()
    plugins = {
        "backends": [inspect_plugin(BACKENDS, name) for name in plugin_names(BACKENDS)],
        "schemes": [inspect_plugin(RESOLVERS, name) for name in plugin_names(RESOLVERS)],
        "environments": [inspect_env(spec) for spec in Registry().list()],
    }
    missing = {extra.name: extra.install for extra in extras if not extra.installed}
    unavailable = {
        name: reason
        for service, names in _USED_BY.items()
        if (reason := probes[service].result()) is not None
        for name in names
    }
    ray = probes["ray"].found
    details = {} if unavailable.get("ray") else {"ray": _describe_ray(ray)}
    report = {
        kind: [_health(plugin, missing, unavailable, details) for plugin in found]
        for kind, found in plugins.items()
    }
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
        "ray": ray,
        "sandbox": examine_sandbox(),
    }


def _health(
    plugin: PluginStatus,
    missing: dict[str, str],
    unavailable: dict[str, str],
    details: dict[str, str],
) -> dict[str, Any]:
    """Return a plug-in's state. A plug-in with the name of a missing extra needs that extra."""
    if plugin.name in missing:
        status, detail = "missing", missing[plugin.name]
    elif plugin.error is not None:
        status, detail = "broken", plugin.error
    elif plugin.name in unavailable:
        status, detail = "unavailable", unavailable[plugin.name]
    else:
        status, detail = "ready", details.get(plugin.name, "")
    return {
        "name": plugin.name,
        "status": status,
        "detail": detail,
        "defined_in": plugin.defined_in,
    }


class _Probe:
    """Contacts a service in a thread, so that one that hangs costs at most `PROBE_S`.

    Attributes:
        found: What the check returned.
    """

    def __init__(self, check: Callable[[], Any]) -> None:
        self.found: Any = None
        self._check = check
        self._problem: str | None = f"It did not answer within {PROBE_S:g} s."
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.found = self._check()
        except EnvWeaveError as error:
            self._problem = str(error)
        except Exception as error:  # noqa: BLE001 - a third party's client
            self._problem = format_error(error)
        else:
            self._problem = None

    def result(self) -> str | None:
        """Return why the service cannot be used; `None` if it can."""
        self._thread.join(PROBE_S)
        return self._problem


def _check_docker() -> None:
    from envweave.providers.docker.engine import Engine

    Engine().close()


def _check_kubernetes() -> None:
    from envweave.providers.kubernetes.cluster import Cluster, NoSuchObjectError

    cluster = Cluster()
    try:
        # The backend needs pods, so asking for one tests the permission too.
        cluster.get("pods", "envweave-doctor", timeout_s=PROBE_S)
    except NoSuchObjectError:
        pass
    finally:
        cluster.close()


def _check_ray() -> ClusterStatus | None:
    from envweave.ray.status import probe_status

    return probe_status(PROBE_S)


def _describe_ray(found: ClusterStatus | None) -> str:
    if found is None:
        return "starts a cluster on this machine"
    nodes, cpus = len(found.nodes), sum(node.cpus for node in found.nodes)
    return f"{nodes} node{'s' * (nodes != 1)} with {cpus:g} CPUs at {found.address}"


_CHECKS: dict[str, Callable[[], Any]] = {
    "docker": _check_docker,
    "kubernetes": _check_kubernetes,
    "ray": _check_ray,
}
_USED_BY = {
    "docker": ("docker", "docker_http"),
    "kubernetes": ("kubernetes",),
    "ray": ("ray",),
}
"""The backends and schemes that need each service."""


def _requirements() -> tuple[list[Dependency], list[Extra]]:
    """Return the dependencies of the core, and each extra, as the installed package declares."""
    core: list[Dependency] = []
    extras: dict[str, list[Dependency]] = {}
    for requirement in metadata.requires("envweave") or []:
        parsed = _REQUIREMENT.match(requirement)
        assert parsed is not None, requirement
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", parsed["only"] or "")
        if extra is None:
            core.append(_dependency(parsed["name"], parsed["bounds"], load=True))
        elif extra[1] not in _NOT_FOR_USERS:
            needed = _dependency(parsed["name"], parsed["bounds"], load=False)
            extras.setdefault(extra[1], []).append(needed)
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
        except Exception as error:  # noqa: BLE001 - importing runs a third party's code
            return Dependency(name, version, format_error(error))
    return Dependency(name, version, None)


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without trailing zeros."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _cpus() -> int:
    """Return the number of CPUs this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:  # noqa: RET505 - the type checker knows platforms by their branches
        return os.cpu_count() or 1


def _print_report(report: dict[str, Any]) -> None:
    from rich.text import Text

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
            ready = "; ".join(filter(None, ["ready", one["detail"]]))
            state = ready if one["status"] == "ready" else one["detail"]
            _add(shown, _mark(one["status"]), f"{word}: {one['name']}", state)
    environments = report["environments"]
    ready_names = [one["name"] for one in environments if one["status"] == "ready"]
    _add(shown, True, "environments", f"{len(ready_names)} ready; see `envweave list`")
    for one in environments:
        if one["status"] != "ready":
            _add(shown, _mark(one["status"]), f"environment: {one['name']}", one["detail"])
    output.print_table("What this machine can run", shown)
    if report["ray"] is not None:
        _print_ray(report["ray"])
    print_sandbox(report["sandbox"])
    where.print()
    if not report["ok"]:
        where.print(Text("Something is broken; see above.", style="bold red"))
        return
    absent = [one["name"] for one in report["backends"] if one["status"] != "ready"]
    verdict = f"Ready, except for the backends {', '.join(absent)}." if absent else "Ready."
    where.print(Text(verdict, style="bold green"))


def _print_ray(found: ClusterStatus) -> None:
    columns = ("CPUs", "GPUs", "workers", "environments", "steps/s")
    shown = output.table("node", *columns, numeric=columns)
    for node in found.nodes:
        shown.add_row(
            node.address,
            f"{node.cpus:g}",
            f"{node.gpus:g}",
            f"{node.workers:,}",
            f"{node.environments:,}",
            f"{node.steps_per_s:,.0f}",
        )
    output.print_table("The Ray cluster", shown)
    if found.silent:
        output.console().print(f"Workers that did not answer, or have not started: {found.silent}")


def _mark(status: str) -> bool | None:
    return {"ready": True, "broken": False}.get(status)


def _add(shown: Any, ready: bool | None, part: str, state: str | None) -> None:
    """Add a row: ready, broken or, with `None`, not available here."""
    from rich.text import Text

    if output.console().options.ascii_only:
        marks = {True: "ok", False: "BROKEN", None: "-"}
    else:
        marks = {True: "✓", False: "✗", None: "–"}
    style = {True: "green", False: "red", None: "yellow"}[ready]
    shown.add_row(Text(marks[ready], style=style), part, state or "")


def examine_sandbox() -> dict[str, Any]:
    """Try every isolation tier and return a report.

    Its keys are `tier`, the strongest that works or `None`; `missing`, what that tier lacks here;
    `next`, how to get each stronger tier; `tiers`, all that were tried; `users` and `cgroups`;
    `packages`, the packages that sessions see by default.
    """
    from envweave import sandbox

    try:
        tried = sandbox.examine()
    except (EnvWeaveError, OSError) as error:
        return {
            "tier": None,
            "missing": [f"Isolation could not be tested: {format_error(error)}"],
            "next": [],
            "tiers": [],
            "users": None,
            "cgroups": None,
            "packages": None,
        }
    strongest = next((one for one in tried if one.available), None)
    stronger = tried if strongest is None else tried[: tried.index(strongest)]
    return {
        "tier": None if strongest is None else strongest.name,
        "missing": [] if strongest is None else list(strongest.missing),
        "next": [_describe_fix(one) for one in stronger],
        "tiers": tried,
        "users": _users(),
        "cgroups": _cgroups(),
        "packages": _packages(),
    }


def _describe_fix(tier: TierReport) -> dict[str, Any]:
    return {"tier": tier.name, "reason": tier.reason, "advice": list(tier.advice)}


def _users() -> dict[str, Any]:
    """Return how many separate user IDs sessions can have, or why they have none."""
    from envweave.sandbox.host.users import find_users

    found = find_users()
    if found.range is None:
        return {"count": 0, "first": None, "reason": found.reason}
    found.range.close()
    return {"count": found.range.count, "first": found.range.first, "reason": ""}


def _cgroups() -> dict[str, Any]:
    """Return the cgroups that sessions can have, or why they have none and what to do."""
    from envweave.sandbox.doctor import advise_cgroups, machine_facts
    from envweave.sandbox.host.cgroups import find_cgroups

    found = find_cgroups()
    if found.cgroups is None:
        advice = advise_cgroups(machine_facts())
        return {"version": None, "cpus": False, "reason": found.reason, "advice": advice}
    made = found.cgroups
    return {"version": made.version, "cpus": made.has_cpus, "reason": "", "advice": []}


def _packages() -> dict[str, Any]:
    """Return what sessions can import by default, and how many distributions are hidden."""
    from importlib import metadata

    from envweave.sandbox.host.packages import resolve_packages

    view = resolve_packages((), None)
    installed = {one.name for one in metadata.distributions()}
    return {"visible": view.describe(), "hidden": len(installed.difference(view.names))}


def print_sandbox(report: dict[str, Any]) -> None:
    """Print a report of `examine_sandbox`."""
    where = output.console()
    where.print()
    where.print("The sandbox", style="bold underline")
    where.print(output.facts(_rows(report)))
    where.print(_make_list(report["missing"]))
    for way in report["next"]:
        where.print(f"Tier {way['tier']} is not available here. {_sentence(way['reason'])}")
        where.print(_make_list(way["advice"]))


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("tier", report["tier"] or "none: sandboxed code cannot run here")]
    users, cgroups = report["users"], report["cgroups"]
    if users is not None:
        own = f"{users['count']} for sessions, from {users['first']}"
        rows.append(("user ids", users["reason"] or own))
    if cgroups is not None:
        limits = "memory, processes, CPU time" if cgroups["cpus"] else "memory, processes"
        text = cgroups["reason"] or f"version {cgroups['version']}: {limits}"
        rows.append(("cgroups", " ".join([text, *cgroups["advice"]])))
    packages = report["packages"]
    if packages is not None:
        text = (
            f"sessions see {packages['visible']}; {packages['hidden']} other installed "
            "distributions can be made visible with packages=[…]"
        )
        rows.append(("packages", text))
    return rows


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _make_list(lines: list[str]) -> Table:
    from rich.table import Table

    made = Table.grid(padding=(0, 1))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for line in lines:
        made.add_row(" -" if output.console().options.ascii_only else " •", line)
    return made
