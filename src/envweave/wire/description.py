"""The description of the environment that a server serves."""

from __future__ import annotations

from typing import Any

import msgspec

from envweave.wire.messages import read_as


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
