"""The data types of the echo environment."""

from __future__ import annotations

from dataclasses import dataclass

import envweave as ew


@dataclass
class EchoAction(ew.Action):
    """A message to be echoed."""

    message: str


@dataclass
class EchoObservation(ew.Observation):
    """The echoed message and its length."""

    echoed_message: str
    message_length: int = 0
