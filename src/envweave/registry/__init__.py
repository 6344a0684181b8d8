"""IDs, the recipes that they name, and plug-ins."""

from envweave.registry.plugins import load_plugin, plugin_names
from envweave.registry.registry import DEFAULT_REGISTRY, Registry
from envweave.registry.spec import (
    EnvSpec,
    MadeElsewhere,
    MakeOptions,
    PackageFiles,
    PackageSource,
    RayOptions,
    ReadyMade,
    Remote,
    build,
)

__all__ = [
    "DEFAULT_REGISTRY",
    "EnvSpec",
    "MadeElsewhere",
    "MakeOptions",
    "PackageFiles",
    "PackageSource",
    "RayOptions",
    "ReadyMade",
    "Registry",
    "Remote",
    "build",
    "load_plugin",
    "plugin_names",
]
