"""`pkg://module:attribute`: a class or function that can be imported."""

from __future__ import annotations

from envweave.errors import EnvIdError
from envweave.registry import EnvSpec, Registry


def resolve_pkg(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """Return the recipe at an import path; importing waits until it is made."""
    module, _, attribute = rest.partition(":")
    if not module or not attribute:
        raise EnvIdError(f"'pkg://{rest}' names no environment. Use 'pkg://module:attribute'.")
    return EnvSpec(f"pkg://{rest}", rest)
