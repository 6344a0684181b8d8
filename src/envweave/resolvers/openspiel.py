"""`openspiel://kuhn_poker`: the games of OpenSpiel."""

from __future__ import annotations

from typing import Any

from envweave.adapters.openspiel import Form, View, from_openspiel, load_game, pyspiel_module
from envweave.environment import Environment
from envweave.registry import EnvSpec, Registry


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`openspiel://kuhn_poker`: a game of OpenSpiel; `kuhn_poker(players=3)` sets parameters.

    The game is loaded when the environment is made, since some need parameters.

    Raises:
        MissingExtraError: OpenSpiel is not installed.
    """
    pyspiel_module()
    return EnvSpec(
        f"openspiel://{rest}",
        f"{__name__}:make_environment",
        kwargs={"game": rest},
        description=f"OpenSpiel's {rest}",
    )


def make_environment(
    game: str, *, form: Form | None = None, view: View | None = None, **parameters: Any
) -> Environment:
    """Make an environment, with the keywords of `from_openspiel` and parameters of the game."""
    return from_openspiel(load_game(game, parameters), form=form, view=view)


def available() -> list[str]:
    """Return the names of all games that can be made without parameters."""
    pyspiel = pyspiel_module()
    mean_field = pyspiel.GameType.Dynamics.MEAN_FIELD
    return sorted(
        one.short_name
        for one in pyspiel.registered_games()
        if one.default_loadable and one.dynamics != mean_field
    )
