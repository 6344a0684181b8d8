"""Foreign environments as ours, and ours as theirs."""

from envweave.adapters.detect import adopt

__all__ = ["adopt"]
