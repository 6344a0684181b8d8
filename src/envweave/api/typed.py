"""Environments whose types somebody else names, where their own hints say nothing."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envweave.adapters import adopt
from envweave.codec import AgentsSpec, AnySpec, Spec, spec_from_hint
from envweave.environment import Environment
from envweave.errors import DefinitionError
from envweave.registry import EnvSpec, ReadyMade
from envweave.registry.plugins import load_path


def with_types(spec: EnvSpec, action: Any, observation: Any) -> EnvSpec:
    """Return a recipe whose environments take and show what is named here.

    Raises:
        DefinitionError: An environment that exists already says otherwise. Others say so when
            they are made.
    """
    if action is None and observation is None:
        return spec
    if isinstance(spec.factory, ReadyMade):
        ready = ReadyMade(_typed(adopt(spec.factory.environment), action, observation))
        return dataclasses.replace(spec, factory=ready)
    about = spec.description or _first_line(spec)
    made = TypedFactory(spec.factory, action, observation)
    return dataclasses.replace(spec, factory=made, description=about)


@dataclass(frozen=True)
class TypedFactory:
    """Makes environments with another factory, and tells them their types.

    Attributes:
        factory: The other one, or its import path.
        action: What `step` takes; `None` to leave it to the hints.
        observation: What is shown; `None` to leave it to the hints.
    """

    factory: Callable[..., Any] | str
    action: Any
    observation: Any

    def __call__(self, **kwargs: Any) -> Environment:
        """Make one.

        Raises:
            DefinitionError: Its own hints say otherwise.
        """
        return _typed(adopt(self._load()(**kwargs)), self.action, self.observation)

    def _load(self) -> Callable[..., Any]:
        loaded = load_path(self.factory) if isinstance(self.factory, str) else self.factory
        if not callable(loaded):
            raise DefinitionError(f"{self.factory!r} makes no environments: it cannot be called.")
        return loaded

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the other factory, so that a keyword which it does not take is refused."""
        return inspect.signature(self._load())


def _typed(environment: Environment, action: Any, observation: Any) -> Environment:
    interface = environment.describe()
    for name, given, own in (
        ("action", action, interface.action_spec),
        ("observation", observation, interface.observation_spec),
    ):
        if given is None:
            continue
        spec = spec_from_hint(given)
        for one in _each(own):
            _refuse_contradiction(name, given, spec, one, interface.name)
        setattr(environment, f"{name}_spec", spec)
    return environment


def _each(spec: Spec) -> Iterator[Spec]:
    yield from spec.agents.values() if isinstance(spec, AgentsSpec) else (spec,)


def _refuse_contradiction(name: str, given: Any, spec: Spec, own: Spec, environment: str) -> None:
    """Let a class stand where the hint names it, a class above it, or nothing."""
    if isinstance(own, AnySpec):
        return
    hinted = getattr(own, "cls", None)
    if isinstance(hinted, type) and isinstance(given, type):
        if issubclass(given, hinted):
            return
    elif own.json_schema() == spec.json_schema():
        return
    raise DefinitionError(
        f"The {name}s of {environment} are {_shown(hinted or own)} by its own type hints, and "
        f"{_shown(given)} by what the server was given. Leave that out, or correct the hints."
    )


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def _first_line(spec: EnvSpec) -> str:
    try:
        return spec.describe()
    except (DefinitionError, ImportError):
        return ""  # whoever makes one will say it better
