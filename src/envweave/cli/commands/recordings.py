"""`envweave replay`, `rescore` and `export`: what can be done with a recording."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from envweave.rollouts.replay import ReplayedEpisode

RunPath = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory of a recording.", show_default=False)
]


def replay_command(
    path: RunPath,
    against: Annotated[
        str | None,
        typer.Option(help="Backend to replay on; default: as recorded.", metavar="BACKEND"),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Replay against this ID, such as another version.", metavar="ID"),
    ] = None,
    episode: Annotated[
        str | None, typer.Option(help="Replay only this episode.", metavar="EPISODE")
    ] = None,
    arg: arguments.Keywords = None,
    json: arguments.Json = False,
) -> int:
    """Replay recorded episodes, and show the first difference of each.

    Makes the environment again and takes the recorded actions, with the recorded seed, task and
    options. The exit code is 1 if anything differs, and 2 if nothing could be replayed.
    """
    from envweave.recording import load
    from envweave.rollouts.replay import replay

    total = 1 if episode is not None else len(load(path))
    with output.stdout_reserved(json), output.progress("replaying", total) as advance:
        report = replay(
            path,
            against=against,
            env=env,
            episode=episode,
            kwargs=arguments.read_keywords(arg),
            on_episode=lambda one: advance(one.status),
        )
    counts = {
        status: sum(one.status == status for one in report.episodes)
        for status in ("equal", "different", "not replayed")
    }
    if json:
        output.write_json({"path": str(path), "summary": counts, "episodes": report.episodes})
    else:
        _print_replay(report.episodes)
        counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        output.console().print(f"\n{counted or 'no episodes'}")
    if counts["different"]:
        return 1
    return 0 if counts["equal"] or not report.episodes else 2


def _print_replay(episodes: list[ReplayedEpisode]) -> None:
    shown = output.table(
        "episode", "environment", "status", "steps", "first difference", numeric=("steps",)
    )
    for one in episodes:
        why = str(one.difference) if one.difference is not None else one.reason or "none"
        shown.add_row(one.episode_id or "–", one.env_id, one.status, str(one.steps), why)
    output.print_table("Replay", shown)


def rescore_command(
    path: RunPath,
    grader: Annotated[
        str,
        typer.Option(
            help="Import path of a Grader, or of a function of an Episode that returns a number.",
            metavar="MODULE:NAME",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rewards into this file, as JSON lines.", metavar="FILE"),
    ] = None,
    json: arguments.Json = False,
) -> int:
    """Grade recorded episodes again, and show old and new rewards.

    The recording is not changed. Episodes that are not usable, and those that the grader cannot
    grade, get no new reward.
    """
    import json as json_module

    from envweave.rollouts.rescore import rescore

    with output.stdout_reserved(json):
        rescored = rescore(path, grader)
    rows: list[dict[str, Any]] = [
        {
            "episode": one.episode_id,
            "task_id": one.task_id,
            "recorded": one.recorded,
            "reward": one.reward,
            "details": one.details,
            "reason": one.reason,
        }
        for one in rescored
    ]
    if out is not None:
        lines = [json_module.dumps(output.jsonable(row), allow_nan=False) for row in rows]
        out.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    graded = [one for one in rescored if one.reward is not None]
    changed = sum(one.is_changed for one in graded)
    if json:
        counts = {"episodes": len(rescored), "graded": len(graded), "changed": changed}
        output.write_json(
            {"path": str(path), "grader": grader, "summary": counts, "episodes": rows}
        )
        return 0
    shown = output.table("episode", "task", "recorded", "new", "note", numeric=("recorded", "new"))
    for one in rescored:
        note = one.reason or ("changed" if one.is_changed else "")
        before = one.recorded if isinstance(one.recorded, float | None) else str(one.recorded)
        before = before if isinstance(before, str) else output.number(before)
        shown.add_row(
            one.episode_id or "–", one.task_id or "–", before, output.number(one.reward), note
        )
    output.print_table(f"Rescored with {grader}", shown)
    output.console().print(f"\n{len(graded)} of {len(rescored)} graded, {changed} changed")
    return 0


class ExportFormat(StrEnum):
    """Formats that a recording can be exported to."""

    json = "json"
    parquet = "parquet"
    atif = "atif"
    eval = "eval"


def export_command(
    path: RunPath,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="json: a line for each episode; parquet: a row for each step; atif: ATIF 1.8, a "
            "line for each trajectory; eval: a log for `inspect view`.",
            metavar="FORMAT",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The file to write.", metavar="FILE", show_default=False)
    ],
    json: arguments.Json = False,
) -> int:
    """Export recorded episodes for other programs."""
    from envweave.recording import load
    from envweave.recording.export import EXPORTS

    recording = load(path)
    count = EXPORTS[form.value](recording, out)
    if json:
        output.write_json(
            {"path": str(path), "format": form.value, "out": str(out), "episodes": count}
        )
    else:
        output.console().print(f"{count} episodes written to {out}", soft_wrap=True)
    return 0
