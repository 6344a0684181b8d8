"""`pettingzoo://classic/tictactoe_v3`: PettingZoo's registered environments.

`?api=aec` or `?api=parallel` chooses the API, and so does `make(..., api=…)`. The default is the
parallel one if PettingZoo has it. For environments of other packages, use
`pkg://module:parallel_env`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from envweave.adapters.pettingzoo import pettingzoo_module
from envweave.errors import (
    EnvIdError,
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    suggest,
)
from envweave.registry import EnvSpec, Registry

_FORMS = ("parallel", "aec")


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`pettingzoo://classic/tictactoe_v3`: an environment of PettingZoo.

    Raises:
        MissingExtraError: PettingZoo is not installed.
        EnvNotFoundError: PettingZoo has no such environment.
        EnvIdError: The part after the `?` is invalid.
    """
    name, _, query = rest.partition("?")
    _find_forms(name)
    chosen = dict(parse_qsl(query, keep_blank_values=True))
    if query and (set(chosen) != {"api"} or chosen["api"] not in _FORMS):
        raise EnvIdError(
            f"'pettingzoo://{rest}': unknown query {query!r}. "
            "Use '?api=parallel' or '?api=aec'; pass anything else as a keyword of make()."
        )
    return EnvSpec(
        f"pettingzoo://{rest}",
        f"{__name__}:make_environment",
        kwargs={"name": name, **chosen},
        description=f"PettingZoo's {name}",
    )


def make_environment(name: str, api: str | None = None, **keywords: Any) -> Any:
    """Make a PettingZoo environment, with any keyword that it takes.

    Raises:
        OptionError: It does not have this API.
        MissingExtraError: It needs a package that is not installed.
    """
    pettingzoo = pettingzoo_module()
    forms = _find_forms(name)
    api = forms[0] if api is None else api
    if api not in forms:
        raise OptionError(
            f"'pettingzoo://{name}' does not have api={api!r}. It has: {', '.join(forms)}."
        )
    try:
        return pettingzoo.make(api, name, **keywords)
    except pettingzoo.env_registry.exceptions.FailedToImport as error:
        family = name.partition("/")[0]
        raise MissingExtraError(
            f"'pettingzoo://{name}' needs a package that is not installed: {error.__cause__}. "
            f"Install it with: pip install 'pettingzoo[{family}]'"
        ) from error


def available() -> list[str]:
    """Return the names of all environments of PettingZoo."""
    pettingzoo = pettingzoo_module()
    tables = [getattr(pettingzoo, f"{form}_registry", {}) for form in _FORMS]
    return sorted({"_v".join(one.rsplit("-v", 1)) for table in tables for one in table})


def _find_forms(name: str) -> list[str]:
    """Return the APIs in which PettingZoo has an environment, the parallel one first."""
    pettingzoo = pettingzoo_module()
    if not hasattr(pettingzoo, "aec_registry"):
        raise MissingExtraError.for_extra(
            f"'pettingzoo://{name}' needs PettingZoo 1.27 or newer.", "pettingzoo"
        )
    forms = []
    for api in _FORMS:
        try:
            pettingzoo.spec(api, name)
        except pettingzoo.env_registry.exceptions.PettingZooRegistryError:
            continue
        forms.append(api)
    if not forms:
        hint = suggest(name, available()).replace("'", "'pettingzoo://", 1)
        raise EnvNotFoundError(
            f"PettingZoo has no environment {name!r}.{hint} pettingzoo.pprint_registry() lists all "
            "of them; for one of another package use 'pkg://module:parallel_env'."
        )
    return forms
