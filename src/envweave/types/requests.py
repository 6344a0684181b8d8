"""Requests: what an environment sends its caller in a result, and the answer to a tool call."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import msgspec

ObsT = TypeVar("ObsT")

AGENT = "agent"
"""The agent id of an environment with one agent."""

REFUSED = "action_refused"
"""The key in a vector row's info that holds the reason why its action was refused."""

Reason: TypeAlias = Literal["terminated", "truncated", "error", "timeout", "lost"]
Blame: TypeAlias = Literal["agent", "environment", "infrastructure"]


class NeedAction(msgspec.Struct, Generic[ObsT], tag_field="type", tag="need_action"):
    """This agent may act now, and the next `step` must bring its action.

    Attributes:
        observation: What the agent sees.
        action_mask: Which actions are legal, if the environment says so.
        reward: What the agent has earned since it last acted; `None` while nothing is scored.
        agent_id: The agent to act; `"agent"` if there is only one.
    """

    observation: ObsT
    action_mask: Any = None
    reward: float | None = None
    agent_id: str = AGENT
    type: ClassVar[str] = "need_action"


class AgentEnd(msgspec.Struct, Generic[ObsT], tag_field="type", tag="agent_end"):
    """This agent leaves while the episode continues. Sent once per agent.

    Attributes:
        agent_id: The agent that leaves.
        observation: Its last observation.
        reward: What it has earned since it last acted.
        terminated: Whether the task ended for it.
        truncated: Whether a limit ended it.
    """

    agent_id: str
    observation: ObsT
    reward: float | None = None
    terminated: bool = True
    truncated: bool = False
    type: ClassVar[str] = "agent_end"


class EpisodeEnd(msgspec.Struct, tag_field="type", tag="episode_end"):
    """The episode is over. Sent exactly once per episode.

    Attributes:
        reason: What ended it.
        blame: Who caused a failure; `None` if nothing failed.
        cause: A description of the failure.
        rewards: With several agents, what each that stayed to the end has earned since it
            last acted. With the rewards of its `NeedAction`s it sums to all it earned.
    """

    reason: Reason
    blame: Blame | None = None
    cause: str | None = None
    rewards: dict[str, float | None] = {}
    type: ClassVar[str] = "episode_end"

    @property
    def valid(self) -> bool:
        """Whether the episode may be trained on: nothing failed, or the agent caused it."""
        return self.blame is None or self.blame == "agent"


class AutoResetReady(msgspec.Struct, Generic[ObsT], tag_field="type", tag="auto_reset_ready"):
    """The next episode has begun; what follows is about that one.

    Attributes:
        initial_obs: The first observation of the new episode.
        initial_info: Its info, with the `seed` it was given.
        episode_id: The new episode.
        task_id: What the new episode is about.
    """

    initial_obs: ObsT
    initial_info: dict[str, Any] = {}
    episode_id: str | None = None
    task_id: str | None = None
    type: ClassVar[str] = "auto_reset_ready"


class ToolCallRequest(msgspec.Struct, tag_field="type", tag="tool_call_request"):
    """The environment asks its caller to run a tool.

    Answer with `step(ToolResult(call_id, value))`. The answer does not count as a step, and
    until it arrives every other action is refused.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] = {}
    type: ClassVar[str] = "tool_call_request"


class LogEvent(msgspec.Struct, tag_field="type", tag="log_event"):
    """A message from the environment to its caller. It needs no answer."""

    message: str
    level: Literal["debug", "info", "warning", "error"] = "info"
    data: dict[str, Any] = {}
    type: ClassVar[str] = "log_event"


class ToolResult(msgspec.Struct):
    """A caller's answer to a `ToolCallRequest`: a value, or an error message."""

    call_id: str
    value: Any = None
    error: str | None = None


Request: TypeAlias = (
    NeedAction[Any] | AgentEnd[Any] | EpisodeEnd | AutoResetReady[Any] | ToolCallRequest | LogEvent
)
