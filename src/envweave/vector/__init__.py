"""Many environments, one call: the vector environment and its batches."""

from envweave.vector.agents.batch import AgentResetBatch, AgentStepBatch
from envweave.vector.batch import ResetBatch, StepBatch
from envweave.vector.transport import BatchTransport
from envweave.vector.vector_env import VectorEnv

__all__ = [
    "AgentResetBatch",
    "AgentStepBatch",
    "BatchTransport",
    "ResetBatch",
    "StepBatch",
    "VectorEnv",
]
