"""The runs below a folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import final

from envweave.errors import OptionError
from envweave.recording.values import VALUES
from envweave.recording.writer import PATTERN
from envweave.web.viewer.index import METRICS, RunIndex

DEPTH = 4
"""How far below the folder runs are looked for."""

MANY = 2000
"""How many runs are listed."""


@final
class RunsFolder:
    """The runs below a folder, found by what lies in them. Links out of it are not followed.

    A run is looked up among those that were found, so no name that a caller sends becomes a path.

    Raises:
        OptionError: There is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise OptionError(
                f"{str(folder)!r} is not a folder. Name the folder of a run, or one with runs in "
                "it, such as `envweave view runs`."
            )
        self.folder = folder.resolve()
        self._runs: dict[str, RunIndex] = {}
        self._indexing: threading.Thread | None = None
        self._lock = threading.Lock()

    def runs(self) -> list[RunIndex]:
        """Return every run, as far as it was read; the rest is read in the background."""
        found: dict[str, RunIndex] = {}
        top = str(self.folder)
        for here, folders, files in os.walk(top):
            depth = here[len(top) :].count(os.sep)
            folders[:] = sorted(one for one in folders if one != VALUES and one[0] != ".")
            if depth >= DEPTH:
                folders.clear()
            if METRICS in files or any(Path(one).match(PATTERN) for one in files):
                run_id = os.path.relpath(here, top)
                run_id = self.folder.name if run_id == "." else run_id
                found[run_id] = self._runs.get(run_id) or RunIndex(Path(here), run_id)
            if len(found) >= MANY:
                break
        with self._lock:
            self._runs = found
            if self._indexing is None or not self._indexing.is_alive():
                self._indexing = threading.Thread(target=self._refresh, daemon=True)
                self._indexing.start()
        self._indexing.join(0.5)  # most folders are read by then
        return list(found.values())

    def _refresh(self) -> None:
        for run in list(self._runs.values()):
            try:
                run.refresh()
            except OSError:
                continue  # it was removed meanwhile

    def find(self, run_id: str) -> RunIndex:
        """Return a run by its id, with all that was written so far.

        Raises:
            OptionError: There is no such run.
        """
        run = self._runs.get(run_id)
        if run is None:
            self.runs()
            run = self._runs.get(run_id)
        if run is None:
            raise OptionError(f"There is no run {run_id[:200]!r} here.")
        run.refresh()
        return run
