"""Texts in the formats that JSON Schema has names for."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable

import numpy as np

_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def _moment(rng: np.random.Generator) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(seconds=int(rng.integers(10**9)))


FORMATS: dict[str, Callable[[np.random.Generator], str]] = {
    "date": lambda rng: _moment(rng).date().isoformat(),
    "date-time": lambda rng: _moment(rng).isoformat(),
    "time": lambda rng: _moment(rng).timetz().isoformat(),
    "duration": lambda rng: f"PT{int(rng.integers(3600))}S",
    "uuid": lambda rng: str(uuid.UUID(bytes=rng.bytes(16), version=4)),
    "email": lambda rng: f"name{int(rng.integers(1000))}@example.com",
    "uri": lambda rng: f"https://example.com/{int(rng.integers(1000))}",
    "ipv4": lambda rng: ".".join(str(int(part)) for part in rng.integers(1, 255, size=4)),
}
"""The formats that can be drawn, by the name that JSON Schema has for them."""
