"""`envweave audit`: what to know of an environment before spending a GPU on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from envweave.testing import AuditReport

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}


def audit_command(
    env_id: arguments.EnvId,
    episodes: Annotated[
        int, typer.Option(help="Number of episodes of each policy.", metavar="N", min=1)
    ] = 16,
    seed: Annotated[int, typer.Option(help="The first seed.", metavar="N", min=0)] = 0,
    max_steps: Annotated[
        int, typer.Option(help="Truncate every episode after N steps.", metavar="N", min=1)
    ] = 200,
    group_size: Annotated[
        int, typer.Option(help="Number of episodes of one task, as in GRPO.", metavar="N", min=2)
    ] = 8,
    solved_at: Annotated[
        float | None,
        typer.Option(
            help="The return of a solved episode; default: the metric success, else 1.",
            metavar="X",
            show_default=False,
        ),
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(
            help="A function (task, result) that returns the next action of a solution.",
            metavar="MODULE:NAME",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="A function (result) that returns an action, such as a model: its groups are "
            "judged.",
            metavar="MODULE:NAME",
            show_default=False,
        ),
    ] = None,
    policy_s: Annotated[
        float,
        typer.Option(
            "--policy-seconds", help="Stop each policy after about X seconds.", metavar="X"
        ),
    ] = 5.0,
    backend: arguments.Backend = None,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    json: arguments.Json = False,
) -> int:
    """Play simple policies, and say what to know before training on an environment.

    It plays doing nothing, random actions, the solution if the environment offers one, and attempts
    to be paid unearned. The verdicts are about solvability, exploits, the signal within groups,
    leaks of private data, determinism, length and failures. Exits with 1 if one of them is "fail".
    """
    from envweave.registry.plugins import load_path
    from envweave.testing import AuditOptions, audit_environment

    keywords = arguments.read_keywords(arg)
    options = AuditOptions(
        episodes=episodes,
        seed=seed,
        max_steps=max_steps,
        group_size=group_size,
        solved_at=solved_at,
        policy_s=policy_s,
    )
    with output.stdout_reserved(json):
        env_id = arguments.installed(env_id, install)
        with output.spinner("auditing") as advance:
            report = audit_environment(
                env_id,
                options=options,
                backend=backend,
                kwargs=keywords,
                oracle=None if oracle is None else load_path(oracle),
                policy=None if policy is None else load_path(policy),
                advance=advance,
            )
    if json:
        output.write_json({"ok": report.ok, **_as_json(report)})
    else:
        _print_report(report)
    return 0 if report.ok else 1


def _as_json(report: AuditReport) -> dict[str, Any]:
    plain = output.jsonable(report)
    for one in plain["policies"]:
        for episode in one["episodes"]:
            del episode["step_s"]
    return dict(plain)


def _print_report(report: AuditReport) -> None:
    from rich.text import Text

    has_solved = any(one.solved is not None for one in report.policies)
    columns = ["policy", "episodes", "mean return", "solved", "length", "not valid"]
    shown = output.table(*columns, numeric=columns[1:])
    for one in report.policies:
        name = Text(one.name, style="" if one.kind != "exploit" else "dim")
        if one.error is not None:
            shown.add_row(name.append(f"\n{one.error}", style="red"), "0", "–", "–", "–", "–")
            continue
        invalid = sum(episode.blame not in (None, "agent") for episode in one.episodes)
        shown.add_row(
            name,
            str(len(one.episodes)),
            output.number(one.mean),
            f"{one.solved:.0%}" if has_solved and one.solved is not None else "–",
            output.number(one.mean_length),
            str(invalid),
        )
    output.print_table(f"{report.id}: policies", shown)
    shown = output.table("", "check", "found")
    for found in report.verdicts:
        status = Text(found.status, style=_STYLES[found.status])
        shown.add_row(status, found.check, found.detail)
    output.print_table("Verdicts", shown)
    where = output.console()
    if report.costs:
        costs = report.costs
        where.print()
        where.print(
            output.facts(
                [
                    ("reset", _times(costs, "reset")),
                    ("step", _times(costs, "step")),
                    ("steps/s", f"{costs['steps_per_s']:,.0f} in one process"),
                    (
                        "prompt",
                        f"{costs['prompt_chars_mean']:.0f} characters, at most "
                        f"{costs['prompt_chars_max']:.0f}",
                    ),
                ]
            )
        )
    failed = sum(one.status == "fail" for one in report.verdicts)
    warned = sum(one.status == "warn" for one in report.verdicts)
    where.print()
    verdict = "FAIL" if failed else "OK"
    where.print(
        f"{verdict}: {failed} failed, {warned} to look at",
        style="bold red" if failed else "bold green",
    )


def _times(costs: Any, what: str) -> str:
    median, p95 = costs[f"{what}_s_median"], costs[f"{what}_s_p95"]
    return f"{_duration(median)}, 95 % below {_duration(p95)}"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
