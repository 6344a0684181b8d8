"""Checks that no test here leaves anything in the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from containers import left_of, need_cluster, need_own_cluster, own_mark, shared


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster with the images of this checkout; at the end nothing of this process is there."""
    monkeypatch.setenv("KUBECONFIG", need_cluster())
    with shared(alone=False):
        yield
        assert left_of(own_mark()) == {}


@pytest.fixture
def pods_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same, while no other test uses the cluster, whose parts may be stopped."""
    monkeypatch.setenv("KUBECONFIG", need_cluster())
    need_own_cluster()
    with shared(alone=True):
        yield
        assert left_of(own_mark()) == {}
