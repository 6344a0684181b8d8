"""`envweave list`: the registered environments, schemes and backends."""

from collections.abc import Iterable
from typing import Annotated

import typer

from envweave.cli import arguments, output
from envweave.cli.inspect_plugins import PluginStatus, inspect_env, inspect_plugin


def list_command(
    show_all: Annotated[
        bool,
        typer.Option(
            "--all", metavar="", help="Show schemes and backends too, and where each is defined."
        ),
    ] = False,
    json: arguments.Json = False,
) -> None:
    """List the registered environments; with --all, also ID schemes and backends.

    A plug-in that cannot be imported is listed with its error.
    """
    import envweave as ew
    from envweave.registry.plugins import BACKENDS, RESOLVERS, plugin_names

    schemes, backends = [], []
    with output.stdout_reserved(json):
        environments = [inspect_env(spec) for spec in ew.list_envs()]
        if show_all or json:
            schemes = [inspect_plugin(RESOLVERS, name) for name in plugin_names(RESOLVERS)]
            backends = [inspect_plugin(BACKENDS, name) for name in plugin_names(BACKENDS)]
    if json:
        output.write_json({"environments": environments, "schemes": schemes, "backends": backends})
        return
    _print_table("Environments", "ID", environments, show_all)
    if show_all:
        _print_table("Schemes", "scheme", schemes, show_all, suffix="://")
        _print_table("Backends", "backend", backends, show_all)
    more = "" if show_all else "\nSchemes and backends: envweave list --all"
    output.console().print(f"\nMore about one: envweave info ID{more}", style="dim")


def _print_table(
    title: str, head: str, found: Iterable[PluginStatus], show_origin: bool, suffix: str = ""
) -> None:
    from rich.text import Text

    shown = output.table(head, "description")
    shown.columns[0].no_wrap = True
    for one in found:
        if one.error is None:
            text = Text(one.description or "(no description)")
        else:
            text = Text(f"broken: {one.error}", style="red")
        if show_origin:
            text.append(f"\n{one.defined_in}", style="dim")
        shown.add_row(one.name + suffix, text)
    output.print_table(title, shown)
