"""The snapshots that a worker process or a server keeps for callers elsewhere."""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from envweave.errors import ForkError
from envweave.session.session import SessionSnapshot

MAX_TOKEN = 64
"""The maximum length of a token, also of one that names its process as well."""

CAPACITY = 256
"""How many snapshots a process keeps; the oldest is dropped for a new one."""


@final
@dataclass(frozen=True, slots=True, weakref_slot=True)
class KeptSnapshot:
    """What a caller elsewhere holds of a snapshot.

    Attributes:
        token: Names it; it cannot be guessed.
        episode_id: The episode.
        step_index: How many steps it had taken.
    """

    token: str
    episode_id: str | None
    step_index: int

    def __deepcopy__(self, memo: dict[int, object]) -> KeptSnapshot:
        return self  # its token is dropped with it


@final
class DroppedSnapshots:
    """The snapshots that a caller elsewhere has dropped. Its next `snapshot` call names them."""

    def __init__(self) -> None:
        self._tokens: deque[str] = deque(maxlen=CAPACITY)

    def watch(self, point: KeptSnapshot) -> KeptSnapshot:
        """Return a snapshot, and note when nothing refers to it any more."""
        weakref.finalize(point, self._tokens.append, point.token).atexit = False
        return point

    def take(self) -> list[str]:
        """Return their tokens, each once."""
        return [self._tokens.popleft() for _ in range(len(self._tokens))]


@final
class KeptSnapshots:
    """Snapshots by their tokens, also those of sessions that are closed."""

    def __init__(self) -> None:
        self._by_token: OrderedDict[str, SessionSnapshot] = OrderedDict()

    def keep(self, point: SessionSnapshot) -> KeptSnapshot:
        """Keep a snapshot; return what names it."""
        token = secrets.token_hex(16)
        self._by_token[token] = point
        if len(self._by_token) > CAPACITY:
            self._by_token.popitem(last=False)
        return KeptSnapshot(token, point.episode_id, point.step_index)

    def get(self, token: str) -> SessionSnapshot:
        """Return a snapshot.

        Raises:
            ForkError: It is of another process, or is not kept any more.
        """
        point = self._by_token.get(token)
        if point is None:
            raise ForkError(
                "The snapshot is not kept here: it is of another process, whose environments are "
                f"its own, or older than the last {CAPACITY}."
            )
        self._by_token.move_to_end(token)
        return point

    def drop(self, tokens: Iterable[str]) -> None:
        """Drop snapshots, if they are kept."""
        for token in tokens:
            self._by_token.pop(token, None)

    def clear(self) -> None:
        """Drop every snapshot."""
        self._by_token.clear()
