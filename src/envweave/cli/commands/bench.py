"""`envweave bench`: how fast an environment is, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from envweave.bench.report import BenchPlan, BenchReport
    from envweave.bench.solo import Rate


SHORT_EPISODE = 20
"""Below this mean length of an episode, its end and reset dominate the figures."""


def bench_command(
    env_id: arguments.EnvId,
    num_envs: Annotated[
        list[int] | None,
        typer.Option(
            help="Number of environments in a vector; repeatable. Default: 16 and 64.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Measure only this backend; default: all that apply.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="Measure only vectors in this mode: serial, threads or async.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps per repeat; default: as many as fit its time.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Duration of each repeat.", metavar="S", min=0.001)
    ] = 0.2,
    repeats: Annotated[
        int,
        typer.Option(help="Number of repeats; all candidates take turns.", metavar="N", min=1),
    ] = 3,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="N", min=0)] = 0,
    memory: Annotated[
        bool,
        typer.Option(
            help="Measure the memory of an environment; this starts further processes.",
            metavar="",
        ),
    ] = True,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    json: arguments.Json = False,
) -> int:
    """Measure how fast an environment is: alone, through make, and in vectors.

    Actions are random. The same episodes are played by the author's code alone and through make,
    so the difference is what make adds to a step. Vectors run in every way that applies here; a
    gym:// environment also in Gymnasium's own vectors.
    """
    from envweave.bench.report import BenchPlan

    plan = BenchPlan(
        arguments.installed(env_id, install),
        arguments.read_keywords(arg),
        sizes=sorted(set(num_envs or (16, 64))),
        backend=backend,
        mode=mode,
        seconds=seconds,
        steps=steps,
        repeats=repeats,
        seed=seed,
        memory=memory,
    )
    with output.stdout_reserved(json):
        figures = _measure(plan)
    if json:
        output.write_json(figures.as_json())
    else:
        print_solo(figures)
        _print_vectors(figures)
        _print_machine(figures)
    return 0


def _measure(plan: BenchPlan) -> BenchReport:
    from envweave.bench.report import count_parts, measure_all, rehearse
    from envweave.cli.random_episodes import draw
    from envweave.testing import RandomPolicy

    def make_chooser(action_spec: Any) -> Any:
        policy = RandomPolicy(action_spec, plan.seed)
        return lambda result: draw(plan.env_id, policy, result)

    script = rehearse(plan, make_chooser)
    with output.progress("measuring", count_parts(plan, script)) as advance:
        return measure_all(plan, script, make_chooser, advance)


def print_solo(figures: BenchReport) -> None:
    """Print how fast one environment is, and where the time of a step goes."""
    from envweave.bench.report import ENVWEAVE

    solo = figures.solo
    shown = output.table(
        "one environment",
        "steps/s",
        "spread",
        "µs per step",
        numeric=("steps/s", "spread", "µs per step"),
    )
    for name, rate in solo.rates.items():
        shown.add_row(name, f"{rate.median:,.0f}", _spread(rate), f"{rate.step_us:,.2f}")
    for name in solo.failures:
        shown.add_row(name, "–", "–", "–")
    output.print_table(f"{figures.plan.env_id}, {_turns(figures.plan)}", shown)
    for name, problem in solo.failures.items():
        output.console().print(f"{name}: {problem}", soft_wrap=True)
    noise = solo.is_overhead_within_noise
    if solo.overhead_us is not None:
        added = solo.overhead_us
        amount = "nothing measurable" if noise else f"{added.median:.2f} µs"
        output.console().print(
            f"\nmake adds {amount} to a step ({added.low:.2f} to {added.high:.2f} µs)."
        )
    _print_episode_length(solo.mean_length)
    total = sum(solo.parts_us.values())
    shown = output.table("part", "µs per step", "share", numeric=("µs per step", "share"))
    for name, part_us in solo.parts_us.items():
        if noise and name == ENVWEAVE:
            shown.add_row(name, "within noise", "–")
        else:
            shown.add_row(name, f"{part_us:,.2f}", f"{part_us / total:.0%}" if total else "–")
    output.print_table("Where the time goes", shown)


def _print_episode_length(mean_length: float | None) -> None:
    where = output.console()
    if mean_length is None:
        where.print("No episode ended while the steps were recorded.")
        return
    where.print(f"Episodes have {mean_length:,.1f} steps on average.")
    if mean_length < SHORT_EPISODE:
        where.print(
            "Hint: with episodes this short, their ends and resets are a large part of the "
            "figures. To measure steps, make episodes longer with a keyword of the environment, "
            "as in -a done_at=100000.",
            style="yellow",
        )


def _print_vectors(figures: BenchReport) -> None:
    columns = ("environments", "how", "steps/s", "spread", "memory each")
    shown = output.table(*columns, numeric=("environments", "steps/s", "spread", "memory each"))
    notes = []
    for one in figures.vectors:
        if one.rate is None:
            shown.add_row(str(one.num_envs), one.way.name, "–", "–", "–")
            notes.append(f"{one.num_envs} {one.way.name}: {one.problem}")
            continue
        shown.add_row(
            str(one.num_envs),
            one.way.name,
            f"{one.rate.median:,.0f}",
            _spread(one.rate),
            _format_bytes(one.env_bytes),
        )
    output.print_table("Vectors", shown)
    for note in notes:
        output.console().print(note, soft_wrap=True)


def _print_machine(figures: BenchReport) -> None:
    machine = figures.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    where = output.console()
    where.print()
    where.print(
        output.facts(
            [
                ("processor", f"{machine['processor']}, {machine['cores']} cores"),
                ("python", f"{machine['python']}; {versions}"),
            ]
        )
    )


def _turns(plan: BenchPlan) -> str:
    length = f"{plan.steps} steps" if plan.steps else f"{plan.seconds:g} s"
    return f"median of {plan.repeats} × {length}, random actions"


def _spread(rate: Rate) -> str:
    return f"{rate.low:,.0f}–{rate.high:,.0f}"


def _format_bytes(size: float | None) -> str:
    if size is None:
        return "–"
    for unit in ("B", "kB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} MB"
