"""`envweave info`: what an ID names."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from envweave.cli import arguments, output
from envweave.cli.inspect_plugins import place_of

if TYPE_CHECKING:
    from envweave.codec import Spec
    from envweave.environment import Environment
    from envweave.registry import EnvSpec
    from envweave.types import Tasks

_LONG = 16


def info_command(
    env_id: arguments.EnvId,
    json: arguments.Json = False,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
) -> None:
    """Show what an environment is: its actions, observations, agents, tasks and how to reset it.

    One is made and closed again; no episode is run.
    """
    import envweave as ew
    from envweave.adapters import adopt
    from envweave.registry import build

    with output.stdout_reserved(json):
        spec = ew.spec(arguments.installed(env_id, install))
        made = build(spec, arguments.read_keywords(arg))
        environment = adopt(made)
        with ew.make(environment) as env:  # closes it, whether its methods are async or not
            report = _describe(spec, made, environment)
            specs = {"Action": env.action_spec, "Observation": env.observation_spec}
    if json:
        output.write_json(report)
        return
    _print_report(report, specs)


def _describe(spec: EnvSpec, made: Any, environment: Environment) -> dict[str, Any]:
    interface = environment.describe()
    factory = spec.load()
    # Gymnasium and PettingZoo hand out wrappers around what is meant.
    author_class = type(getattr(made, "unwrapped", made))
    docstring = inspect.cleandoc(author_class.__doc__ or factory.__doc__ or "")
    return {
        "id": spec.id,
        "description": spec.description or docstring.partition("\n")[0],
        "docstring": docstring,
        "class": place_of(author_class),
        "factory": place_of(spec.factory),
        "signature": _signature(factory),
        "kwargs": dict(spec.kwargs),
        "max_episode_steps": spec.max_episode_steps,
        "reset_takes": sorted(interface.reset_takes),
        "agents": None if interface.possible_agents is None else list(interface.possible_agents),
        "tasks": _splits(environment.tasks),
        "deterministic": environment.deterministic,
        "async": interface.is_async,
        "action_schema": interface.action_spec.json_schema(),
        "observation_schema": interface.observation_spec.json_schema(),
    }


def _signature(factory: Any) -> str:
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:
        signature = inspect.signature(factory)  # a hint whose name is for type checkers alone
    except (TypeError, ValueError):
        return ""  # a builtin that cannot be looked at
    return ", ".join(map(str, signature.parameters.values()))


def _splits(tasks: Tasks | None) -> dict[str, int | None] | None:
    return None if tasks is None else {name: tasks.length(name) for name in tasks.splits}


def _print_report(report: dict[str, Any], specs: dict[str, Spec]) -> None:
    where = output.console()
    where.print(report["id"], style="bold")
    where.print(_opening(report["docstring"]) or report["description"] or "(no description)")
    where.print()
    keywords = ", ".join(f"{name}={value!r}" for name, value in report["kwargs"].items())
    limit = report["max_episode_steps"]
    where.print(
        output.facts(
            [
                ("class", report["class"]),
                *([("made by", report["factory"])] if report["factory"] != report["class"] else []),
                ("keywords", report["signature"] or "none"),
                *([("given", keywords)] if keywords else []),
                ("reset takes", ", ".join(report["reset_takes"]) or "nothing"),
                ("agents", ", ".join(report["agents"] or ()) or "one"),
                ("tasks", _tasks_in_words(report["tasks"])),
                ("deterministic", "yes" if report["deterministic"] else "no"),
                ("async", "yes" if report["async"] else "no"),
                *([] if limit is None else [("step limit", str(limit))]),
            ]
        )
    )
    for title, spec in specs.items():
        _print_fields(title, spec)
    where.print(f"\nRun it: envweave run {report['id']}", style="dim", soft_wrap=True)


def _opening(docstring: str) -> str:
    lines = output.reflow(docstring).splitlines()
    if len(lines) <= _LONG:
        return "\n".join(lines)
    return "\n".join([*lines[:_LONG], f"… ({len(lines) - _LONG} more lines; all with --json)"])


def _tasks_in_words(splits: dict[str, int | None] | None) -> str:
    if splits is None:
        return "none"
    return ", ".join(
        f"{name} ({'endless' if length is None else length})" for name, length in splits.items()
    )


def _print_fields(title: str, spec: Spec) -> None:
    from envweave.cli.spec_table import fields_of, same_for_all
    from envweave.codec import AgentsSpec

    several = isinstance(spec, AgentsSpec) and same_for_all(spec)
    fields = fields_of(spec)
    shown = output.table("field", "type", "allowed")
    for field in fields:
        shown.add_row(field.path or "(itself)", field.type, field.allowed or "any")
    output.print_table(title + " of each agent" * several, shown, empty="no fields of its own")
