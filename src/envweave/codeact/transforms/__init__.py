"""Transforms that reward code: for the task, for its quality, and never if it is unsafe."""

from envweave.codeact.transforms.presets import create_math_env_transform, create_safe_env_transform
from envweave.codeact.transforms.rewards import (
    CodeQualityTransform,
    MathProblemTransform,
    TaskCompletionTransform,
)
from envweave.codeact.transforms.safety import CodeSafetyTransform
from envweave.codeact.transforms.static_analysis import UNSAFE_MODULES, UNSAFE_NAMES

__all__ = [
    "UNSAFE_MODULES",
    "UNSAFE_NAMES",
    "CodeQualityTransform",
    "CodeSafetyTransform",
    "MathProblemTransform",
    "TaskCompletionTransform",
    "create_math_env_transform",
    "create_safe_env_transform",
]
