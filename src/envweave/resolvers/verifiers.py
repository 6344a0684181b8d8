"""`verifiers://module`: an installed environment of verifiers, of either generation."""

from __future__ import annotations

import importlib.util
from typing import Any

from envweave.adapters.verifiers.environments import from_verifiers
from envweave.environment import Environment
from envweave.errors import EnvIdError, EnvNotFoundError
from envweave.registry import EnvSpec, Registry


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`verifiers://module`: an installed environment of verifiers, of either generation.

    The module is looked up when the environment is made.

    Raises:
        EnvIdError: It is not the name of a module.
    """
    module = rest.replace("-", "_")
    if not all(part.isidentifier() for part in module.split(".")):
        raise EnvIdError(
            f"'verifiers://{rest}' does not name a module. Use 'verifiers://module', and pass "
            "options with make(…, kwargs={…})."
        )
    return EnvSpec(
        f"verifiers://{rest}",
        f"{__name__}:make_environment",
        kwargs={"module": module},
        description=f"The verifiers environment {module}",
    )


def make_environment(module: str, **keywords: Any) -> Environment:
    """Load an environment, with the keywords that `from_verifiers` takes.

    Raises:
        EnvNotFoundError: There is no such module.
    """
    # Not when it is resolved: with `venv=`, another Python has the module.
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise EnvNotFoundError(
            f"'verifiers://{module}': no module {module!r} is installed. Install the package that "
            "has it, such as with: prime env install OWNER/NAME"
        )
    return from_verifiers(module, **keywords)
