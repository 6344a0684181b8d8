"""The small face behind which everyone in sandbox.py stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ordered import NotAvailableError


class Session(Protocol):
    """Something that runs code, and keeps what the code leaves."""

    def run(self, code: str) -> Any:
        """Run code, and return the value of its last expression; raise if it fails."""

    def close(self) -> None:
        """End it, and everything it started."""


def _cannot_branch(session: Any) -> Session:
    raise NotAvailableError("it cannot copy a live session")


@dataclass(frozen=True)
class Box:
    """Where somebody's sessions come from.

    Attributes:
        session: Makes a session, in which code can call the tool `add`.
        many: Makes so many at once, where there is a quicker way than one by one.
        branch: Makes a copy of a live one.
        also: Returns the processes of its sessions that are not below this one.
        close: Ends what its sessions share.
        setting: How it is used, where that does not go without saying.
    """

    session: Callable[[], Session]
    many: Callable[[int], list[Session]] | None = None
    branch: Callable[[Any], Session] = _cannot_branch
    also: Callable[[], list[int]] = list
    close: Callable[[], None] = lambda: None
    setting: Mapping[str, Any] = field(default_factory=dict)
