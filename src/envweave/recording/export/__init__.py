"""Exports of recordings: JSON lines, Parquet, ATIF and Inspect's log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envweave.recording.export.atif import to_atif, trajectory_of
from envweave.recording.export.inspect_log import to_eval
from envweave.recording.export.tables import to_json, to_parquet
from envweave.recording.reader import Recording

__all__ = ["to_atif", "to_eval", "to_json", "to_parquet", "trajectory_of"]

EXPORTS: dict[str, Callable[[Recording, Path], int]] = {
    "json": to_json,
    "parquet": to_parquet,
    "atif": to_atif,
    "eval": to_eval,
}
"""What writes each format: it returns how many episodes it wrote."""
