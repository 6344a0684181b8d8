"""`envweave bench`: how fast an environment is, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from envweave.bench.report import BenchPlan, BenchReport
    from envweave.bench.solo import Rate


def bench_command(
    env_id: arguments.EnvId,
    num_envs: Annotated[
        list[int] | None,
        typer.Option(
            help="How many environments a vector has; may be given several times. 16 and 64 if "
            "left out.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Measure only where this runs. Left out, all that apply are measured.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="Measure vectors only in this mode: serial, threads or async.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="How many steps each repeat takes. Left out, as many as fit its time.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long each repeat takes.", metavar="S", min=0.001)
    ] = 0.2,
    repeats: Annotated[
        int,
        typer.Option(help="How often each is measured; all take turns.", metavar="N", min=1),
    ] = 3,
    seed: Annotated[int, typer.Option(help="Where randomness begins.", metavar="N", min=0)] = 0,
    memory: Annotated[
        bool,
        typer.Option(
            help="Find out what memory an environment takes; this starts a process each.",
            metavar="",
        ),
    ] = True,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    json: arguments.Json = False,
) -> int:
    """Measure how fast an environment is: alone, through make, and in vectors.

    Actions are drawn at random. The same episodes are played by the author's code alone and
    through make, so that the difference is what make adds to a step. Vectors run in every way
    that applies here; a gym:// environment also in Gymnasium's own.
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
        _print_solo(figures)
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


def _print_solo(figures: BenchReport) -> None:
    solo = figures.solo
    shown = output.table(
        "one environment",
        "steps/s",
        "spread",
        "µs a step",
        numeric=("steps/s", "spread", "µs a step"),
    )
    for name, rate in solo.rates.items():
        shown.add_row(name, f"{rate.median:,.0f}", _spread(rate), f"{rate.step_us:,.2f}")
    for name in solo.failures:
        shown.add_row(name, "–", "–", "–")
    output.print_table(f"{figures.plan.env_id}, {_turns(figures.plan)}", shown)
    for name, problem in solo.failures.items():
        output.console().print(f"{name}: {problem}", soft_wrap=True)
    if solo.overhead_us is not None:
        added = solo.overhead_us
        output.console().print(
            f"\nmake adds {added.median:.2f} µs to a step ({added.low:.2f} to {added.high:.2f})."
        )
    total = sum(solo.parts_us.values())
    shown = output.table("part", "µs a step", "share", numeric=("µs a step", "share"))
    for name, part_us in solo.parts_us.items():
        shown.add_row(name, f"{part_us:,.2f}", f"{part_us / total:.0%}" if total else "–")
    output.print_table("Where the time goes", shown)


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
            _in_words(one.env_bytes),
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


def _in_words(size: float | None) -> str:
    if size is None:
        return "–"
    for unit in ("B", "kB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} MB"
