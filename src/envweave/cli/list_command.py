"""`envweave list`: what has a name here."""

from collections.abc import Iterable

from envweave.cli import arguments, output
from envweave.cli.inspect_plugins import PluginStatus, look_at_env, look_at_plugin


def list_command(json: arguments.Json = False) -> None:
    """List every environment that has a name, and the known schemes and backends.

    A plug-in that cannot be imported is listed with its error.
    """
    import envweave as ew
    from envweave.registry.plugins import BACKENDS, RESOLVERS, plugin_names

    with output.stdout_reserved(json):
        environments = [look_at_env(spec) for spec in ew.list_envs()]
        schemes = [look_at_plugin(RESOLVERS, name) for name in plugin_names(RESOLVERS)]
        backends = [look_at_plugin(BACKENDS, name) for name in plugin_names(BACKENDS)]
    if json:
        output.write_json({"environments": environments, "schemes": schemes, "backends": backends})
        return
    _print_table("Environments", "ID", environments)
    _print_table("Schemes", "scheme", schemes, suffix="://")
    _print_table("Backends", "backend", backends)
    output.console().print("\nMore about one: envweave info ID", style="dim")


def _print_table(title: str, head: str, found: Iterable[PluginStatus], suffix: str = "") -> None:
    from rich.text import Text

    shown = output.table(head, "what it is, and where")
    shown.columns[0].no_wrap = True
    for one in found:
        if one.error is None:
            said = Text(one.description or "(no description)")
        else:
            said = Text(f"broken: {one.error}", style="red")
        said.append(f"\n{one.defined_in}", style="dim")
        shown.add_row(one.name + suffix, said)
    output.print_table(title, shown)
