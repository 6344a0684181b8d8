"""`local://name-v0`: what this process registered."""

from __future__ import annotations

from envweave.registry import EnvSpec, Registry


def resolve_local(rest: str, registry: Registry) -> EnvSpec:
    """Return the recipe that was registered under this name."""
    return registry.get(rest, announced=False)
