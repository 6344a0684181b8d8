"""The episode that a tool is called in: its task, its seed, and state of its own."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from envweave.errors import CallOrderError, ForkError, format_error
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
            A fork copies it.
        calls: How often each tool was called.
    """

    task: Task | None = None
    seed: int | None = None
    state: dict[str, Any] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def copied(self) -> ToolEpisode:
        """Return a copy that shares the task and nothing else.

        Raises:
            ForkError: `copy.deepcopy` cannot copy the state.
        """
        try:
            state = copy.deepcopy(self.state, {id(self.task): self.task})
        except Exception as error:  # what `deepcopy` runs is code of the tools' authors
            raise ForkError(
                f"The state of the tools cannot be copied: {format_error(error)}"
            ) from error
        return ToolEpisode(self.task, self.seed, state, self.calls.copy())


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
