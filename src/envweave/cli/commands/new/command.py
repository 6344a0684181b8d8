"""`envweave new`: a small complete project with an environment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from envweave.cli import arguments, output
from envweave.cli.commands.new.project import ProjectKind, create_project, read_name


def new_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the project, such as my-env; its environment has the ID my-env-v0.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        ProjectKind,
        typer.Option(
            help="What it begins with: single (one agent), multi-agent (two players in turn), "
            "code (an agent that writes Python) or chat (a conversation).",
            metavar="KIND",
        ),
    ] = ProjectKind.single,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="A new or empty folder for it; default: ./NAME.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Create a project with an environment that works: to change, not to fill in.

    It has an environment, its client and its app, tests that include every promise of envweave, a
    Dockerfile, a file for CI and a README. Nothing is ever overwritten.
    """
    names = read_name(name)
    folder = Path(name) if folder is None else folder
    files = create_project(names, kind, folder)
    relative = [str(one.relative_to(folder)) for one in files]
    if json:
        output.write_json(
            {"id": names.env_id, "kind": kind.value, "dir": str(folder), "files": relative}
        )
        return
    where = output.console()
    where.print(f"Created {folder}, with the environment {names.env_id}:", soft_wrap=True)
    for one in relative:
        where.print(f"  {one}", style="dim", soft_wrap=True)
    where.print("\nNext:")
    for command, about in (
        (f"cd {shlex.quote(str(folder))}", ""),
        ("pip install -e '.[dev]'", ""),
        ("pytest", "its tests pass"),
        (f"envweave play {names.env_id}", "play it by hand"),
        (f"envweave serve {names.env_id}", "serve it"),
    ):
        note = f"  # {about}" if about else ""
        where.print(f"  {command:{26 + len(names.env_id)}}{note}".rstrip(), soft_wrap=True)
