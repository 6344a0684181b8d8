"""Adapters from and to the environments of other libraries."""

from envweave.adapters.detect import adopt

__all__ = ["adopt"]
