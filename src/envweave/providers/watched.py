"""`WatchedProvider`: one that can tell what became of the place that it started."""

from __future__ import annotations

from abc import abstractmethod

from envweave.providers.base import ContainerProvider


class WatchedProvider(ContainerProvider):
    """A provider whose place can be looked at from outside, and whose server asks for a token.

    A client that has lost its connection asks `why_gone`, and so neither waits for a server that
    will never answer again, nor has to guess why.
    """

    @property
    @abstractmethod
    def token(self) -> str | None:
        """What to show the server that was started; `None` if it asks for nothing."""

    @abstractmethod
    def why_gone(self) -> str | None:
        """Return why nobody will ever answer there again; `None` if somebody may."""

    @abstractmethod
    def another(self) -> WatchedProvider:
        """Return one more of this kind, with the same options and no place yet."""
