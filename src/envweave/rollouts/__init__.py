"""Whole episodes over any backend: `pool` and `rollout`, and recorded ones: `replay`, `rescore`."""

from envweave.rollouts.episode import Decision
from envweave.rollouts.faults import Fault
from envweave.rollouts.pool import Pool, pool
from envweave.rollouts.replay import replay
from envweave.rollouts.rescore import rescore
from envweave.rollouts.rollout import Rollout, rollout

__all__ = ["Decision", "Fault", "Pool", "Rollout", "pool", "replay", "rescore", "rollout"]
