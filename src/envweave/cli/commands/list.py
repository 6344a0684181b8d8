"""`envweave list`: the registered environments, schemes and backends."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated

import typer

from envweave.cli import arguments, output
from envweave.cli.inspect_plugins import (
    PluginStatus,
    SchemeContent,
    inspect_content,
    inspect_env,
    inspect_plugin,
)

_SHOWN = 3


def list_command(
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="Show only IDs that contain it.", show_default=False),
    ] = None,
    show_all: Annotated[
        bool,
        typer.Option(
            "--all", metavar="", help="Show schemes and backends too, and where each is defined."
        ),
    ] = False,
    available: Annotated[
        bool,
        typer.Option(
            "--available",
            metavar="",
            help="Show what each installed scheme offers, and how to install the others.",
        ),
    ] = False,
    json: arguments.Json = False,
) -> None:
    """List the registered environments; with --all, also ID schemes and backends.

    With --available it lists what libraries offer by their scheme, such as rg:// and textarena://.
    A plug-in that cannot be imported is listed with its error.
    """
    import envweave as ew
    from envweave.registry.plugins import BACKENDS, RESOLVERS, plugin_names

    schemes, backends, content = [], [], []
    wanted = (text or "").lower()
    with output.stdout_reserved(json):
        specs = [spec for spec in ew.list_envs() if wanted in spec.id.lower()]
        environments = [inspect_env(spec) for spec in specs]
        if available:
            content = _find_content(wanted)
        if show_all or json:
            schemes = [inspect_plugin(RESOLVERS, name) for name in plugin_names(RESOLVERS)]
            backends = [inspect_plugin(BACKENDS, name) for name in plugin_names(BACKENDS)]
    if json:
        found = {"environments": environments, "schemes": schemes, "backends": backends}
        output.write_json({**found, "available": content} if available else found)
        return
    if environments or not available:
        _print_table("Environments", "ID", environments, show_all)
    if available:
        _print_content(content, in_full=bool(wanted))
    if show_all:
        _print_table("Schemes", "scheme", schemes, show_all, suffix="://")
        _print_table("Backends", "backend", backends, show_all)
    if not (available or show_all):
        output.console().print(
            "\nWhat other libraries offer: envweave list --available", style="dim"
        )
    more = "" if show_all else "\nSchemes and backends: envweave list --all"
    output.console().print(f"\nMore about one: envweave info ID{more}", style="dim")


def _find_content(wanted: str) -> list[SchemeContent]:
    """Return what each scheme offers. A scheme that is asked for by name is asked alone."""
    from envweave.registry.plugins import RESOLVERS, plugin_names

    names = plugin_names(RESOLVERS)
    scheme, _, rest = wanted.partition("://")
    asked = [scheme] if scheme in names else names
    found = [one for one in map(inspect_content, asked) if one is not None]
    if scheme in names and not rest:
        return found
    return [
        dataclasses.replace(one, ids=[env_id for env_id in one.ids if wanted in env_id.lower()])
        for one in found
    ]


def _print_content(content: list[SchemeContent], *, in_full: bool) -> None:
    from rich.text import Text

    shown = output.table("scheme", "IDs", "", numeric=["IDs"])
    shown.columns[0].no_wrap = True
    for one in content:
        if one.error is not None:
            if not in_full or len(content) == 1:
                shown.add_row(f"{one.scheme}://", "–", Text(one.error, style="dim"))
        elif in_full and one.ids:
            shown.add_row(f"{one.scheme}://", str(len(one.ids)), "\n".join(one.ids))
        elif not in_full:
            some = ", ".join(one.ids[:_SHOWN])
            more = f"{some}, …\nall: envweave list --available {one.scheme}"
            shown.add_row(f"{one.scheme}://", str(len(one.ids)), more)
    output.print_table("Available", shown)


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
