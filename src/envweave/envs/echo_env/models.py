"""What the echo environment takes and shows."""

from __future__ import annotations

from dataclasses import dataclass

import envweave as ew


@dataclass
class EchoAction(ew.Action):
    """A message to be echoed."""

    message: str


@dataclass
class EchoObservation(ew.Observation):
    """The message as it came back, and how long it is."""

    echoed_message: str
    message_length: int = 0
