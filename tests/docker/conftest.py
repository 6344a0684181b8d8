"""Checks that no test here leaves a container behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from docker_images import containers_of, need_images

from envweave.providers.cleanup import Owner


@pytest.fixture
def images() -> Iterator[None]:
    """The images of this checkout; at the end no container of this process is left."""
    need_images()
    yield
    assert containers_of(Owner.here().mark) == []
