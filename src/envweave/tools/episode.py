"""The episode that a tool is called in: its task, its seed, and state of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from envweave.errors import CallOrderError
from envweave.types import Task

_EPISODE: ContextVar[ToolEpisode | None] = ContextVar("envweave_tool_episode", default=None)


@dataclass(slots=True)
class ToolEpisode:
    """The episode that a tool is called in.

    Attributes:
        task: What the episode is about, with its private part: tools run on the host, so what
            one returns to an agent is its author's decision. `None` if there is no task.
        seed: The seed of the episode, if it has one.
        state: What the tools of this episode share: empty when it begins, and theirs alone, also
            where many episodes run at the same time. A grader reads it as `attempt.tool_state`.
    """

    task: Task | None = None
    seed: int | None = None
    state: dict[str, Any] = field(default_factory=dict)


def current_episode() -> ToolEpisode:
    """Return the episode that the calling tool was called in.

    Raises:
        CallOrderError: No tool of an environment is running here.
    """
    episode = _EPISODE.get()
    if episode is None:
        raise CallOrderError(
            "current_episode() was called outside an episode. Call it in a tool, while the code "
            "of an agent calls that; in a thread that the tool started, pass on what it returned."
        )
    return episode


@contextlib.contextmanager
def in_episode(episode: ToolEpisode | None) -> Iterator[None]:
    """Let `current_episode` return this one."""
    token = _EPISODE.set(episode)
    try:
        yield
    finally:
        _EPISODE.reset(token)
