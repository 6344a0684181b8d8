"""An environment with tasks, exported as a v1 environment."""

import verifiers_exports as exports

import envweave as ew

RiddlesTaskset, RiddlesEnv, RiddlesHarness = ew.to_verifiers(exports.Riddles, generation="v1")
__all__ = ["RiddlesEnv", "RiddlesHarness", "RiddlesTaskset"]
