"""`envweave check`: whether an environment keeps every promise."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from envweave.testing import CheckOutcome

_STYLES = {"passed": "green", "failed": "red", "skipped": "dim"}


def check_command(
    env_id: arguments.EnvId,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="N", min=0)] = 0,
    episodes: Annotated[
        int,
        typer.Option(help="Number of runs; each uses the next seed.", metavar="N", min=1),
    ] = 1,
    max_steps: Annotated[
        int,
        typer.Option(
            help="Maximum number of steps to wait for the end of an episode.", metavar="N", min=1
        ),
    ] = 1000,
    backend: arguments.Backend = None,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    json: arguments.Json = False,
) -> int:
    """Check that an environment keeps every promise a caller relies on.

    Actions are random. Exits with 1 if a promise is broken; promises that do not apply to this
    environment are skipped.
    """
    keywords = arguments.read_keywords(arg)
    with output.stdout_reserved(json):
        env_id = arguments.installed(env_id, install)
        backend = arguments.backend_of(env_id, backend)
        with _collect_warnings("envweave.sandbox.host.packages") as notes:
            outcomes = _check(env_id, range(seed, seed + episodes), max_steps, backend, keywords)
    counts = Counter(outcome.status for outcome in outcomes)
    if json:
        output.write_json(
            {
                "id": env_id,
                "backend": backend,
                "seed": seed,
                "episodes": episodes,
                "max_steps": max_steps,
                "ok": counts["failed"] == 0,
                "counts": {status: counts[status] for status in ("passed", "failed", "skipped")},
                "checks": outcomes,
                "notes": notes,
            }
        )
    else:
        _print_outcomes(f"{env_id} on {backend}", outcomes)
        for note in notes:
            output.console().print(f"Note: {note}", style="yellow", markup=False)
    return 1 if counts["failed"] else 0


@contextlib.contextmanager
def _collect_warnings(name: str) -> Iterator[list[str]]:
    """Collect the warnings of a logger, which would be lost in the progress bar."""
    notes: list[str] = []
    logger = logging.getLogger(name)

    def keep(record: logging.LogRecord) -> bool:
        notes.append(record.getMessage())
        return False

    logger.addFilter(keep)
    try:
        yield notes
    finally:
        logger.removeFilter(keep)


def _check(
    env_id: str, seeds: range, max_steps: int, backend: str, keywords: dict[str, Any]
) -> list[CheckOutcome]:
    import dataclasses

    from envweave.testing import ENVIRONMENT_CHECKS, iter_checks

    merged: dict[str, CheckOutcome] = {}
    with output.progress("checking", len(seeds) * len(ENVIRONMENT_CHECKS)) as advance:
        for seed in seeds:
            found = iter_checks(
                env_id, backend=backend, seed=seed, max_steps=max_steps, kwargs=keywords
            )
            for outcome in found:
                advance(outcome.name.replace("_", " "))
                if len(seeds) > 1 and not outcome.ok:
                    detail = f"with seed {seed}: {outcome.detail}"
                    outcome = dataclasses.replace(outcome, detail=detail)
                merged[outcome.name] = _worse(merged.get(outcome.name), outcome)
    return list(merged.values())


def _worse(first: CheckOutcome | None, second: CheckOutcome) -> CheckOutcome:
    """Return the decisive outcome of two runs of a check: failed over passed over skipped."""
    order = ("skipped", "passed", "failed")
    if first is None or order.index(second.status) > order.index(first.status):
        return second
    return first


def _print_outcomes(title: str, outcomes: list[CheckOutcome]) -> None:
    from rich.text import Text

    where = output.console()
    marks = {"passed": "✓", "failed": "✗", "skipped": "–"}
    if where.options.ascii_only:
        marks = {"passed": "ok", "failed": "FAILED", "skipped": "-"}
    shown = output.table("", "promise")
    for outcome in outcomes:
        style = _STYLES[outcome.status]
        text = Text(outcome.promise or outcome.name.replace("_", " "))
        if outcome.detail:
            text.append(f"\n{outcome.detail}", style=style)
        shown.add_row(Text(marks[outcome.status], style=style), text)
    output.print_table(title, shown)
    where.print()
    counts = Counter(outcome.status for outcome in outcomes)
    verdict = "FAILED" if counts["failed"] else "OK"
    where.print(
        f"{verdict}: {counts['passed']} kept, {counts['failed']} broken, "
        f"{counts['skipped']} not applicable",
        style="bold red" if counts["failed"] else "bold green",
    )
