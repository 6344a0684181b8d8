"""How an episode ended whose worker is gone."""

from __future__ import annotations

from envweave.types import EpisodeEnd
from envweave.workers.worker_process import WorkerLostError


def end_of(loss: WorkerLostError, row: int) -> EpisodeEnd:
    """Return how the episode of one environment ended that was lost with its worker."""
    if loss.offender == row:
        return EpisodeEnd("timeout", "environment", str(loss))
    return EpisodeEnd("lost", "infrastructure", str(loss))
