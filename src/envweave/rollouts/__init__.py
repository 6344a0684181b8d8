"""Whole episodes over any backend: `pool` and `rollout`."""

from envweave.rollouts.faults import Fault
from envweave.rollouts.opening import pool
from envweave.rollouts.playing import Decision
from envweave.rollouts.pooling import Pool
from envweave.rollouts.running import Rollout
from envweave.rollouts.starting import rollout

__all__ = ["Decision", "Fault", "Pool", "Rollout", "pool", "rollout"]
