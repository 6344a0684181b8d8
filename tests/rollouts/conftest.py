"""A third-party backend for pools to run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lossy_backend
import pytest

from envweave.registry import plugins


@pytest.fixture
def lossy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of `lossy_backend`, announced as an installed package would announce it."""
    info = tmp_path / "lossy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lossy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[envweave.backends]\nlossy = lossy_backend\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins._find_entry_points.cache_clear()
    lossy_backend.LOSE.clear()
    lossy_backend.BEGUN.clear()
    yield "lossy"
    monkeypatch.undo()
    plugins._find_entry_points.cache_clear()
