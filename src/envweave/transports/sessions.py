"""What a vector asks of its sessions between two calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envweave.errors import EnvWeaveError
from envweave.session import Session
from envweave.types import Task
from envweave.vector.batch import Standing


def check_each(
    sessions: Sequence[Session],
    ids: Sequence[int],
    seeds: Sequence[int | None],
    tasks: Sequence[Task | str | None],
    options: Mapping[str, Any] | None,
) -> None:
    """Refuse a reset that one of these would refuse, naming it; nothing changes."""
    for i, seed, task in zip(ids, seeds, tasks, strict=True):
        try:
            sessions[i].check_reset(seed=seed, task=task, options=options)
        except EnvWeaveError as error:
            raise type(error)(f"Environment {i}: {error}") from None


def standing(session: Session) -> Standing:
    """Return where a session stands."""
    return Standing(session.last, session.step_index, session.episode_id, session.task_id)
