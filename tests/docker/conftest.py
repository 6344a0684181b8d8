"""Checks that no test here leaves a container behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from containers import need_images, own_containers


@pytest.fixture
def images() -> Iterator[None]:
    """The images of this checkout; at the end no container of this process is left."""
    need_images()
    yield
    assert own_containers() == []
