"""Looking at an environment between its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from envweave.errors import ClosedError, StateFailedError, in_words
from envweave.session.phase import Phase

if TYPE_CHECKING:
    from envweave.session.rules import Session


@contextmanager
def looking(session: Session) -> Iterator[None]:
    """Read an author's state; what the environment says meanwhile has no result to be said in.

    Raises:
        ClosedError: The session is closed.
        StateFailedError: The author's code raised.
    """
    name = session.interface.name
    if session.phase is Phase.CLOSED:
        raise ClosedError(f"state() on {name}, which is closed.")
    before = len(session.said)
    try:
        yield
    except Exception as error:
        raise StateFailedError(f"{name}.state failed: {in_words(error)}") from error
    finally:
        del session.said[before:]
