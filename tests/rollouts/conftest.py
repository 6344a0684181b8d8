"""A third-party backend for pools to run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environments.tasks import LOSSY_BACKEND, LossyBackend
from installations import install, refresh_plugins


@pytest.fixture
def lossy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyBackend]:
    """The backend `"lossy"`, announced as an installed package would announce it."""
    entry_points = "[envweave.backends]\nlossy = environments.tasks:LOSSY_BACKEND\n"
    install(tmp_path, "lossy", {"lossy-1.0.dist-info/entry_points.txt": entry_points})
    monkeypatch.syspath_prepend(tmp_path)
    refresh_plugins()
    LOSSY_BACKEND.lost_calls.clear()
    LOSSY_BACKEND.begun.clear()
    yield LOSSY_BACKEND
    monkeypatch.undo()
    refresh_plugins()
