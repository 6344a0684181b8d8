"""Whole episodes over any backend: `pool` and `rollout`."""

from envweave.rollouts.episode import Decision
from envweave.rollouts.faults import Fault
from envweave.rollouts.pool import Pool, pool
from envweave.rollouts.rollout import Rollout, rollout

__all__ = ["Decision", "Fault", "Pool", "Rollout", "pool", "rollout"]
