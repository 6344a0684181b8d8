"""Many environments, one call: the vector environment and its batches."""

from envweave.vector.batch import ResetBatch, StepBatch
from envweave.vector.vector_env import BatchTransport, VectorEnv

__all__ = ["BatchTransport", "ResetBatch", "StepBatch", "VectorEnv"]
