"""The echo environment: it returns every message."""

from __future__ import annotations

import envweave as ew
from envweave.envs.echo_env.models import EchoAction, EchoObservation

READY = "Echo environment ready!"


class EchoEnvironment(ew.Environment):
    """Echo every message. A step earns a tenth of the message's length, and no step is the last."""

    copyable = True

    def reset(self, *, seed: int | None = None) -> EchoObservation:  # noqa: ARG002 - nothing is random
        """Return the greeting. The seed has no effect: nothing here is random."""
        return EchoObservation(READY)

    def step(self, action: EchoAction) -> EchoObservation:
        """Return the message."""
        length = len(action.message)
        # A division, since 3 * 0.1 is 0.30000000000000004.
        return EchoObservation(action.message, length, reward=length / 10)
