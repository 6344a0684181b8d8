"""Metrics: figures of episodes, and where they are written."""

from envweave.metrics.episodes import episode_metrics
from envweave.metrics.sinks import MetricsSink, to_jsonl, to_mlflow, to_tensorboard, to_wandb

__all__ = [
    "MetricsSink",
    "episode_metrics",
    "to_jsonl",
    "to_mlflow",
    "to_tensorboard",
    "to_wandb",
]
