"""The text that the environments of remote.py show, the same on both sides."""

from __future__ import annotations

import base64
import os
import random

SIZE = int(os.environ.get("REMOTE_SIZE", "200"))
"""How many bytes of text an observation has."""


def shown() -> str:
    """Return text of `SIZE` bytes that does not compress to next to nothing."""
    return base64.b85encode(random.Random(0).randbytes(SIZE)).decode()[:SIZE]
