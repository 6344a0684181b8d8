"""`envweave build`: build a Docker image that serves an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    from envweave.cli.commands.build.plan import BuildPlan


def build_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="ID|FOLDER",
            help="An ID, such as echo-v0 or pkg://my_module:MyEnv; or the folder of a project with "
            "a pyproject.toml, such as ./my_env.",
            show_default=False,
        ),
    ],
    tag: Annotated[
        str | None,
        typer.Option(
            "--tag",
            "-t",
            metavar="NAME:TAG",
            help="Name of the image; default for an ID: NAME-env:latest.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Environment of the project; default: the only one it registers.",
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="REQUIREMENT",
            help="Additional requirement for pip; repeatable.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Base image, which contains envweave; default: envweave-base:latest.",
        ),
    ] = None,
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            metavar="",
            help="Fetch dependencies inside the build rather than on this machine.",
        ),
    ] = False,
    print_only: Annotated[
        bool,
        typer.Option("--print", metavar="", help="Print what would be built and build nothing."),
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Build a Docker image whose server serves an environment.

    The environment's package is installed in it: its wheel is built and its dependencies are
    fetched on this machine, so the build itself needs no network. The image has an unprivileged
    user and a health check, and the build fails if the environment cannot be imported there.
    """
    from envweave.cli.commands.build.image import BuildError, build_image, steps_of
    from envweave.cli.commands.build.plan import plan_for

    with output.stdout_reserved(json or print_only):
        plan = plan_for(target, tag, env=env, base=base, more=more or (), online=online)
    if print_only:
        _print_plan(plan, json)
        return 0
    try:
        with output.progress(f"Building {plan.image}", steps_of(plan)) as report:
            built = build_image(plan, report)
    except BuildError as error:
        message, _, log = str(error).partition("\n")
        if log:
            output.console(stderr=True).print(log, soft_wrap=True)
        output.error_line(message)
        return 1
    if json:
        output.write_json(built)
        return 0
    where = output.console()
    for line in (
        f"Built {built.image}, {built.size / 1e6:.0f} MB, which serves {built.env}.",
        f'In Python: ew.make("docker://{built.image}")',
        f"From here: envweave run docker://{built.image}",
        f"By hand: docker run --rm -p 127.0.0.1:8000:8000 -e ENVWEAVE_TOKEN=secret {built.image}",
    ):
        where.print(line, soft_wrap=True)
    return 0


def _print_plan(plan: BuildPlan, as_json: bool) -> None:
    from envweave.cli.commands.build.image import arguments_of, dockerfile

    fetched_where = "inside the build" if plan.online else "on this machine"
    if as_json:
        document: dict[str, Any] = {
            "image": plan.image,
            "env": plan.env_id,
            "base": plan.base,
            "arguments": arguments_of(plan),
            "installs": [str(one) for one in [*plan.sources, *plan.more]],
            "dependencies": fetched_where,
            "dockerfile": dockerfile(),
        }
        output.write_json(document)
        return
    where = output.console()
    installs = [str(one) for one in [*plan.sources, *plan.more]]
    rows = [
        ("image", plan.image),
        ("serves", plan.env_id),
        ("built on", plan.base),
        ("installs", "; ".join(installs) or "nothing: part of envweave"),
        *([("dependencies", f"fetched {fetched_where}")] if installs else []),
        *((f"ARG {name}", value or "(empty)") for name, value in arguments_of(plan).items()),
    ]
    where.print(output.facts(rows))
    where.print()
    where.print(dockerfile(), end="", soft_wrap=True)
