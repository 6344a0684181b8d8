"""What a vector asks of its sessions between two calls."""

from __future__ import annotations

from collections.abc import Sequence

from envweave.errors import EnvWeaveError
from envweave.session import Session
from envweave.vector.choices import Wanted
from envweave.vector.reset_batch import Standing


def check_each(sessions: Sequence[Session], wanted: Wanted) -> None:
    """Refuse a reset that one of these would refuse, naming it; nothing changes."""
    for i, keywords in wanted.items():
        try:
            sessions[i].check_reset(**keywords)
        except EnvWeaveError as error:
            raise type(error)(f"Environment {i}: {error}") from None


def standing(session: Session) -> Standing:
    """Return where a session stands."""
    return Standing(session.last, session.step_index, session.episode_id, session.task_id)
