"""`textarena://TicTacToe-v0`: the games of TextArena."""

from __future__ import annotations

from typing import Any

from envweave.adapters.textarena import find_game, from_textarena, textarena_module
from envweave.environment import Environment
from envweave.registry import EnvSpec, Registry


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`textarena://TicTacToe-v0`: a text game of TextArena, for one player or several.

    Raises:
        MissingExtraError: TextArena is not installed.
        EnvNotFoundError: It has no such game.
    """
    find_game(rest)
    return EnvSpec(
        f"textarena://{rest}",
        f"{__name__}:make_environment",
        kwargs={"name": rest},
        description=f"TextArena's {rest}",
    )


def make_environment(name: str, **keywords: Any) -> Environment:
    """Make an environment, with the keywords of `from_textarena` and of the game."""
    return from_textarena(name, **keywords)


def available() -> list[str]:
    """Return the names of all games."""
    return sorted(textarena_module().envs.registration.ENV_REGISTRY)
