"""Foreign environments as ours, and ours as theirs."""

from envweave.adapters.foreign import adopt

__all__ = ["adopt"]
