"""What the training programs share: the log of a run, evaluation, progress, and their models."""

from envweave.examples.training.evaluation import FIRST_SEED, Evaluation, Policy, evaluate
from envweave.examples.training.run_log import (
    METRICS,
    RunHistory,
    RunLog,
    claim_fresh_run_dir,
    claim_run_dir,
    open_run_dir,
    read_run_log,
    replace_file,
)

__all__ = [
    "FIRST_SEED",
    "METRICS",
    "Evaluation",
    "Policy",
    "RunHistory",
    "RunLog",
    "claim_fresh_run_dir",
    "claim_run_dir",
    "evaluate",
    "open_run_dir",
    "read_run_log",
    "replace_file",
]
