"""Texts in the formats of JSON Schema."""

from __future__ import annotations

import datetime
import uuid

import numpy as np
import pytest

from envweave.codec.scalars import StrSpec
from envweave.errors import SpecError


def test_a_format_is_drawn_and_described_and_not_checked() -> None:
    rng = np.random.default_rng(0)

    datetime.date.fromisoformat(StrSpec(format="date").sample(rng))
    datetime.datetime.fromisoformat(StrSpec(format="date-time").sample(rng))
    uuid.UUID(StrSpec(format="uuid").sample(rng))

    assert StrSpec(format="date").contains("some day")
    assert StrSpec(format="date").json_schema() == {"type": "string", "format": "date"}


def test_an_unknown_format_is_not_sampled() -> None:
    spec = StrSpec(format="of their own")

    assert not spec.can_sample
    with pytest.raises(SpecError, match="in the format 'of their own'"):
        spec.sample(np.random.default_rng(0))
