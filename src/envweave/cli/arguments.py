"""Arguments and options that several commands share."""

import json
from typing import Annotated, Any

import typer


def _names(incomplete: str) -> list[str]:
    from envweave.registry.plugins import ENVS, plugin_names

    return [name for name in plugin_names(ENVS) if name.startswith(incomplete)]


EnvId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="An ID, such as counter-v0, gym://CartPole-v1 or pkg://my_module:MyEnv. "
        "Modules of the current directory are found.",
        autocompletion=_names,
        show_default=False,
    ),
]

Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON document instead of text.")
]

Keywords = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        "-a",
        metavar="NAME=VALUE",
        help="A keyword for the environment's constructor; may be given several times. "
        "VALUE is read as JSON where it is JSON.",
        show_default=False,
    ),
]

Backend = Annotated[
    str | None,
    typer.Option(
        help="Where the environment runs; inproc, unless its ID says where, if left out.",
        metavar="NAME",
    ),
]


Install = Annotated[
    str,
    typer.Option(
        help="Whether the package of a prime:// ID may be installed: never, ask or always.",
        metavar="WHEN",
    ),
]


def installed(env_id: str, install: str) -> str:
    """Return an ID whose package, if it needs one, is installed, and with its version.

    Raises:
        InstallError: The package is missing, and may not or cannot be installed.
    """
    if install == "never" and "/" not in env_id:
        return env_id
    import envweave as ew
    from envweave.providers.interpreter import PythonInterpreter, ensure_installed, read_permission

    install, spec = read_permission(install), ew.spec(env_id)
    if spec.package is None:
        return env_id
    ensure_installed(spec.id, spec.package, PythonInterpreter(), install)
    return spec.id


def backend_of(env_id: str, given: str | None) -> str:
    """Return where an environment runs."""
    import envweave as ew

    return given or ew.spec(env_id).backend or "inproc"


def read_keywords(given: list[str] | None) -> dict[str, Any]:
    """Return `NAME=VALUE` options as keywords.

    Raises:
        typer.BadParameter: One has no name or no value.
    """
    keywords: dict[str, Any] = {}
    for one in given or []:
        name, separator, value = one.partition("=")
        if not separator or not name.isidentifier():
            raise typer.BadParameter(f"--arg {one!r} is not NAME=VALUE, as in --arg done_at=5.")
        try:
            keywords[name] = json.loads(value)
        except ValueError:
            keywords[name] = value
    return keywords
