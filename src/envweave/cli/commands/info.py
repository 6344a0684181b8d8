"""`envweave info`: describe the environment that an ID names."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from envweave.cli import arguments, output
from envweave.cli.inspect_plugins import definition_of

if TYPE_CHECKING:
    from envweave.codec import Spec
    from envweave.environment import Environment
    from envweave.registry import EnvSpec
    from envweave.types import Tasks

_LONG = 16
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Examples?):$", re.MULTILINE)
_QUALIFIER = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def info_command(
    env_id: arguments.EnvId,
    json: arguments.Json = False,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
) -> None:
    """Show the actions, observations, agents, tasks and keywords of an environment.

    Makes one environment and closes it; no episode is run.
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
    _print_report(report, specs, _keywords(spec.load()))


def _describe(spec: EnvSpec, made: Any, environment: Environment) -> dict[str, Any]:
    interface = environment.describe()
    factory = spec.load()
    # Gymnasium and PettingZoo return wrappers around the author's class.
    author_class = type(getattr(made, "unwrapped", made))
    docstring = inspect.cleandoc(author_class.__doc__ or factory.__doc__ or "")
    return {
        "id": spec.id,
        "description": spec.description or docstring.partition("\n")[0],
        "docstring": docstring,
        "class": definition_of(author_class),
        "factory": definition_of(spec.factory),
        "signature": ", ".join(map(str, _parameters(factory))),
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


def _parameters(factory: Any) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:
        signature = inspect.signature(factory)  # an annotation that only type checkers can resolve
    except (TypeError, ValueError):
        return []  # a builtin without a signature
    return list(signature.parameters.values())


def _keywords(factory: Any) -> list[tuple[str, str, str]]:
    """Return the name, short type and default of each parameter of a factory."""
    empty = inspect.Parameter.empty
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    return [
        (
            stars.get(one.kind, "") + one.name,
            "" if one.annotation is empty else _short_type(one.annotation),
            "" if one.default is empty else repr(one.default),
        )
        for one in _parameters(factory)
    ]


def _short_type(annotation: Any) -> str:
    """Return an annotation without module names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    parts = re.split(r"('[^']*'|\"[^\"]*\")", text)  # the values of a Literal stay as they are
    return "".join(
        part if index % 2 else _QUALIFIER.sub("", part) for index, part in enumerate(parts)
    )


def _splits(tasks: Tasks | None) -> dict[str, int | None] | None:
    return None if tasks is None else {name: tasks.length(name) for name in tasks.splits}


def _print_report(
    report: dict[str, Any], specs: dict[str, Spec], keywords: list[tuple[str, str, str]]
) -> None:
    where = output.console()
    where.print(report["id"], style="bold")
    where.print(_opening(report["docstring"]) or report["description"] or "(no description)")
    where.print()
    preset = ", ".join(f"{name}={value!r}" for name, value in report["kwargs"].items())
    limit = report["max_episode_steps"]
    where.print(
        output.facts(
            [
                ("class", report["class"]),
                *([("made by", report["factory"])] if report["factory"] != report["class"] else []),
                *([] if keywords else [("keywords", "none")]),
                *([("preset", preset)] if preset else []),
                ("reset takes", ", ".join(report["reset_takes"]) or "nothing"),
                ("agents", ", ".join(report["agents"] or ()) or "one"),
                ("tasks", _format_splits(report["tasks"])),
                ("deterministic", "yes" if report["deterministic"] else "no"),
                ("async", "yes" if report["async"] else "no"),
                *([] if limit is None else [("step limit", str(limit))]),
            ]
        )
    )
    if keywords:
        shown = output.table("keyword", "type", "default")
        for row in keywords:
            shown.add_row(*row)
        output.print_table("Keywords", shown)
    for title, spec in specs.items():
        _print_fields(title, spec)
    where.print(f"\nRun it: envweave run {report['id']}", style="dim", soft_wrap=True)


def _opening(docstring: str) -> str:
    """Return the beginning of a docstring, without the sections for programmers."""
    docstring = _SECTION.split(docstring, maxsplit=1)[0].rstrip()
    lines = output.reflow(docstring).splitlines()
    if len(lines) <= _LONG:
        return "\n".join(lines)
    return "\n".join([*lines[:_LONG], f"… ({len(lines) - _LONG} more lines; all with --json)"])


def _format_splits(splits: dict[str, int | None] | None) -> str:
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
