"""Whatever is tested here leaves nothing in the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes_cluster import left_of, need_cluster

from envweave.providers.reaper import Owner


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster with the images of this checkout; at the end nothing of this process is there."""
    monkeypatch.setenv("KUBECONFIG", need_cluster())
    yield
    assert left_of(Owner.here().mark) == {}
