"""`counter-v0`, exported as a v1 environment."""

import envweave as ew

CounterTaskset, CounterEnv, CounterHarness = ew.to_verifiers("counter-v0", num_examples=4)
__all__ = ["CounterEnv", "CounterHarness", "CounterTaskset"]
