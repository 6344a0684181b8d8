"""The description of an environment by its server, and the interface that clients make from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import msgspec

from envweave.codec import AgentsSpec, Spec
from envweave.environment.introspection import (
    RESET_PARAMETERS,
    Interface,
    by_agent,
    for_one,
    read_spec,
)
from envweave.errors import WireError
from envweave.types import Tasks
from envweave.wire.decoding import ObservationRebuilder, Rebuilder, rebuilder
from envweave.wire.messages import read_as
from envweave.wire.results import Rebuild
from envweave.wire.schema_read import spec_of
from envweave.wire.schema_write import schema_of


class Description(msgspec.Struct, kw_only=True):
    """What a client must know before it opens a session.

    Attributes:
        name: The name of the environment's class.
        env_id: The ID that it is served as.
        version: The version of envweave at the server.
        action: JSON Schema of an action; with several agents, of a dict by agent.
        observation: JSON Schema of an observation; with several agents, of a dict by agent.
        state: JSON Schema of the state.
        reset_takes: The parameters of its `reset`.
        possible_agents: All agents that may take part; `None` for one agent without a name.
        deterministic: Whether the same seed, task and actions give the same episode.
        splits: How many tasks each split has, `None` for an endless one; `None` for an
            environment without tasks.
        description: One line about it.
        openenv_fields: The fields of an observation that OpenEnv's clients know; `None` for all.
        max_message_bytes: The largest message that the server accepts; 0 if unknown.
    """

    name: str
    env_id: str
    version: str
    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_takes: list[str]
    possible_agents: list[str] | None = None
    deterministic: bool = True
    splits: dict[str, int | None] | None = None
    description: str = ""
    max_message_bytes: int = 0
    openenv_fields: list[str] | None = None


def read_description(plain: Any) -> Description:
    """Return a description from plain data.

    Raises:
        WireError: It is invalid.
    """
    return read_as(plain, Description, "The server's description cannot be read")


@final
@dataclass(frozen=True, slots=True)
class Types:
    """The author's classes, as type hints; `None` if the client does not have them.

    With several agents, each is the type of every agent, or a dict by agent.
    """

    action: Any = None
    observation: Any = None
    state: Any = None


def describe(
    interface: Interface,
    state_spec: Spec,
    tasks: Tasks | None,
    env_id: str,
    version: str,
    description: str = "",
) -> Description:
    """Return the description of an environment for its clients."""
    agents = interface.possible_agents
    return Description(
        name=interface.name,
        env_id=env_id,
        version=version,
        action=schema_of(interface.action_spec),
        observation=schema_of(interface.observation_spec),
        state=schema_of(state_spec),
        reset_takes=sorted(interface.reset_takes),
        possible_agents=None if agents is None else list(agents),
        deterministic=interface.deterministic,
        splits=None if tasks is None else {name: tasks.length(name) for name in tasks.splits},
        description=description,
        openenv_fields=None if interface.openenv_fields is None else [*interface.openenv_fields],
    )


@final
class Rebuilt:
    """An environment's interface at the client, made from its description.

    The author's classes are used if the client has them. Otherwise dataclasses are made from the
    schemas, with the same fields and defaults.

    Attributes:
        interface: The environment's interface. None of its methods is a coroutine.
        rebuild: Makes observations from plain data.

    Raises:
        WireError: The description is invalid.
    """

    def __init__(self, description: Description, types: Types | None = None) -> None:
        types = Types() if types is None else types
        agents = description.possible_agents
        if agents is not None and len(set(agents)) < len(agents):
            raise WireError("The server's description names an agent twice.")
        state = _spec(description.state, "state", types.state, None)
        self.interface = Interface(
            frozenset(description.reset_takes) & frozenset(RESET_PARAMETERS),
            frozenset(),
            _spec(description.action, "action", types.action, agents),
            _spec(description.observation, "observation", types.observation, agents),
            None if agents is None else tuple(agents),
            deterministic=description.deterministic,
            name=description.name,
        )
        self.rebuild: Rebuild = ObservationRebuilder(self.interface.observation_spec)
        self._state: Rebuilder | None = rebuilder(state)

    def rebuild_state(self, plain: Any) -> Any:
        """Return the author's state, made from plain data."""
        return plain if self._state is None else self._state(plain)


def _spec(schema: dict[str, Any], role: str, hint: Any, agents: list[str] | None) -> Spec:
    if agents is None:
        name = f"{role}_spec"
        return spec_of(schema, role) if hint is None else for_one(read_spec(hint, name), name)
    if hint is not None:
        return by_agent(read_spec(hint, f"{role}_spec"), tuple(agents), f"{role}_spec")
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        raise WireError(f"The server's description has no {role} for each agent.")
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return AgentsSpec(
        {agent: spec_of({**_part(properties, agent, role), **shared}, role) for agent in agents}
    )


def _part(properties: dict[str, Any], agent: str, role: str) -> dict[str, Any]:
    part = properties.get(agent)
    if not isinstance(part, dict):
        raise WireError(f"The server's description has no {role} of {agent[:40]!r}.")
    return part
