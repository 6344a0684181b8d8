"""The plain data that authors and callers exchange."""

from envweave.types.data import Action, Observation, State
from envweave.types.episodes import Episode, EpisodeParent, EpisodePoint, EpisodeStep, Snapshot
from envweave.types.requests import (
    AGENT,
    REFUSED,
    AgentEnd,
    AutoResetReady,
    Blame,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Reason,
    Request,
    ToolCallRequest,
    ToolResult,
)
from envweave.types.results import Event, ResetResult, StepResult
from envweave.types.tasks import Task, Tasks

__all__ = [
    "AGENT",
    "REFUSED",
    "Action",
    "AgentEnd",
    "AutoResetReady",
    "Blame",
    "Episode",
    "EpisodeEnd",
    "EpisodeParent",
    "EpisodePoint",
    "EpisodeStep",
    "Event",
    "LogEvent",
    "NeedAction",
    "Observation",
    "Reason",
    "Request",
    "ResetResult",
    "Snapshot",
    "State",
    "StepResult",
    "Task",
    "Tasks",
    "ToolCallRequest",
    "ToolResult",
]
