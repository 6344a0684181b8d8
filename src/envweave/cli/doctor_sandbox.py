"""The sandbox section of `envweave doctor`: isolation available here, and how to improve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envweave.cli import output
from envweave.errors import EnvWeaveError, format_error

if TYPE_CHECKING:
    from rich.table import Table

    from envweave.sandbox import TierReport


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
    stands = next((one for one in tried if one.available), None)
    stronger = tried if stands is None else tried[: tried.index(stands)]
    return {
        "tier": None if stands is None else stands.name,
        "missing": [] if stands is None else list(stands.missing),
        "next": [_way_to(one) for one in stronger],
        "tiers": tried,
        "users": _users(),
        "cgroups": _cgroups(),
        "packages": _packages(),
    }


def _way_to(tier: TierReport) -> dict[str, Any]:
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
    from envweave.sandbox.doctor.advice import advise_cgroups
    from envweave.sandbox.doctor.machine import machine_facts
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
    where.print(_listed(report["missing"]))
    for way in report["next"]:
        where.print(f"Tier {way['tier']} is not available here. {_sentence(way['reason'])}")
        where.print(_listed(way["advice"]))


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


def _listed(lines: list[str]) -> Table:
    from rich.table import Table

    made = Table.grid(padding=(0, 1))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for line in lines:
        made.add_row(" -" if output.console().options.ascii_only else " •", line)
    return made
