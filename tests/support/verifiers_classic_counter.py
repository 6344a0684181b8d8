"""Ours as a classic environment of verifiers."""

import envweave as ew


def load_environment():
    return ew.to_verifiers("counter-v0", num_examples=4)
