"""`envweave run`: episodes with a random policy."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from pathlib import Path

    from envweave.cli.random_episodes import FinishedEpisode, Return


class PolicyName(StrEnum):
    """Policies by name."""

    random = "random"


def run_command(
    env_id: arguments.EnvId,
    policy: Annotated[
        PolicyName, typer.Option(help="The policy that acts.", metavar="random")
    ] = PolicyName.random,
    episodes: Annotated[int, typer.Option(help="Number of episodes.", metavar="N", min=1)] = 10,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed; drawn if omitted.", metavar="N", min=0),
    ] = None,
    max_steps: Annotated[
        int, typer.Option(help="Truncate every episode after N steps.", metavar="N", min=1)
    ] = 1000,
    backend: arguments.Backend = None,
    record: arguments.Record = None,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    json: arguments.Json = False,
) -> int:
    """Run episodes and show their returns, lengths and ends.

    Several agents act in turns or at once, as the environment requires. An episode that failed
    is counted separately, never as a return of 0, and the exit code is 1.
    """
    from envweave.cli.random_episodes import summarize

    keywords = arguments.read_keywords(arg)
    with output.stdout_reserved(json):
        env_id = arguments.installed(env_id, install)
        backend = arguments.backend_of(env_id, backend)
        finished = _play(env_id, episodes, seed, max_steps, backend, keywords, record)
    summary = summarize(finished)
    if json:
        output.write_json(
            {
                "id": env_id,
                "policy": policy.value,
                "backend": backend,
                "seed": finished[0].seed,
                "max_steps": max_steps,
                "episodes": [one.as_json() for one in finished],
                "summary": summary,
            }
        )
    else:
        _print_episodes(f"{env_id}, {policy.value} policy", finished)
        _print_summary(summary, finished[0].seed if seed is None else None)
    return 1 if summary["invalid"] else 0


def _play(
    env_id: str,
    episodes: int,
    seed: int | None,
    max_steps: int,
    backend: str,
    keywords: dict[str, Any],
    record: Path | None,
) -> list[FinishedEpisode]:
    import envweave as ew
    from envweave.cli.random_episodes import play

    own_limit = ew.spec(env_id).max_episode_steps
    limit = max_steps if own_limit is None else min(own_limit, max_steps)
    finished: list[FinishedEpisode] = []
    with (
        ew.make(
            env_id,
            backend=backend,
            max_episode_steps=limit,
            record=record,
            kwargs=keywords,
        ) as env,
        output.progress("running", episodes) as advance,
    ):
        for one in play(env, episodes=episodes, seed=seed):
            finished.append(one)
            advance(f"last return {_format_return(one.total)}")
    return finished


def _print_episodes(title: str, finished: list[FinishedEpisode]) -> None:
    from rich.text import Text

    columns = ["episode", "return", "length", "end"]
    if any(one.task_id is not None for one in finished):
        columns.append("task")
    several = any(isinstance(one.total, dict) for one in finished)
    numeric = ("episode", "length") if several else ("episode", "return", "length")
    shown = output.table(*columns, numeric=numeric)
    for one in finished:
        end = Text(one.reason, style="" if one.valid else "red")
        if one.blame is not None:
            end.append(f" (by {one.blame})")
        if one.cause is not None:
            end.append(f"\n{one.cause}")
        row: list[str | Text] = [str(one.number), _format_return(one.total), str(one.length), end]
        shown.add_row(*row, *([one.task_id or "–"] if "task" in columns else []))
    output.print_table(title, shown)


def _print_summary(summary: dict[str, Any], drawn_seed: int | None) -> None:
    counted = str(summary["episodes"])
    if summary["invalid"]:
        counted += f", of which {summary['invalid']} not valid (excluded from the means)"
    rows = [
        ("episodes", counted),
        ("mean return", _format_return(summary["mean_return"])),
        ("mean length", output.number(summary["mean_length"])),
        ("ends", ", ".join(f"{reason} {times}" for reason, times in summary["ends"].items())),
        ("steps", f"{summary['steps']} in {summary['duration_s']:.2f} s"),
        ("steps/s", f"{summary['steps_per_s']:,.0f}"),
    ]
    if drawn_seed is not None:
        rows.append(("seed", f"{drawn_seed} (repeat with --seed {drawn_seed})"))
    where = output.console()
    where.print()
    where.print(output.facts(rows))


def _format_return(total: Return) -> str:
    if isinstance(total, dict):
        return ", ".join(f"{agent} {output.number(one)}" for agent, one in total.items()) or "–"
    return output.number(total)
