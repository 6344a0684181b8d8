"""What an environment returns that cannot be sent: its own failure, and nobody else's."""

from __future__ import annotations

from typing import Any

from envweave.errors import ActionError, BadReturnError, ResetFailedError, in_words
from envweave.session import Session
from envweave.session.outcomes import join_start
from envweave.transports.process.channel import pack
from envweave.transports.trail import lost_result
from envweave.types import EpisodeEnd, ResetResult, StepResult


def refused(value: Any) -> Exception | None:
    """Return why a value cannot be sent; `None` if it can."""
    try:
        pack(value)
    except Exception as error:  # noqa: BLE001 - whatever an author's object raises
        return BadReturnError(f"what it returned cannot be sent to another process: {error}")
    return None


def check_actions(actions: Any) -> None:
    """Refuse actions that cannot be sent.

    Raises:
        ActionError: One cannot be.
    """
    try:
        pack(actions)
    except Exception as error:
        raise ActionError(
            f"action: it cannot be sent to a worker process: {in_words(error)}"
        ) from error


def fail_start(
    session: Session, start: ResetResult[Any] | Exception
) -> ResetResult[Any] | Exception:
    """Return what came of a reset, as it can be sent."""
    error = refused(start)
    if error is None:
        return start
    if isinstance(start, Exception):
        return ResetFailedError(str(start))
    return session.reset_failed(error)


def fail_step(session: Session, result: StepResult[Any]) -> StepResult[Any]:
    """Return what came of a step, as it can be sent.

    If it cannot be, the episode ends here as an error, and the environment is replaced at its
    next reset.
    """
    error = refused(result)
    if error is None:
        return result
    end = EpisodeEnd("error", "environment", in_words(error))
    several = session.interface.possible_agents is not None
    failed = lost_result(result.observation, end, result, several_agents=several)
    if result.ready is not None and refused(result.ready) is None:
        return join_start(failed, result.ready, result._asked, result._later)  # noqa: SLF001
    session.abandon()
    session.seat.is_spent = True
    return failed
