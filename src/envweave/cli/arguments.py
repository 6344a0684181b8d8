"""Arguments and options that several commands share."""

import json
from pathlib import Path
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
        help="A keyword argument of the environment's constructor; repeatable. VALUE is parsed as "
        "JSON if it is valid JSON, else taken as text.",
        show_default=False,
    ),
]

Backend = Annotated[
    str | None,
    typer.Option(
        help="Where the environment runs; default: what its ID says, else inproc.",
        metavar="NAME",
    ),
]


Record = Annotated[
    Path | None,
    typer.Option(
        help="Record every episode into this directory; see `envweave replay`.", metavar="DIR"
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
    """Install the package that an ID needs, if any; return the ID with its version.

    Raises:
        InstallError: The package is missing and cannot be installed, or that is not allowed.
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


def backend_of(env_id: str, backend: str | None) -> str:
    """Return the backend that an environment runs on."""
    import envweave as ew

    return backend or ew.spec(env_id).backend or "inproc"


def read_keywords(arguments: list[str] | None) -> dict[str, Any]:
    """Return `NAME=VALUE` options as keyword arguments.

    Raises:
        typer.BadParameter: One has no name or no value.
    """
    keywords: dict[str, Any] = {}
    for argument in arguments or []:
        name, separator, value = argument.partition("=")
        if not separator or not name.isidentifier():
            raise typer.BadParameter(
                f"--arg {argument!r} is not NAME=VALUE, as in --arg done_at=5."
            )
        try:
            keywords[name] = json.loads(value)
        except ValueError:
            keywords[name] = value
    return keywords
