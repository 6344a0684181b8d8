"""How tests compare values: as results do, with their types, and NaN equal to NaN."""

from envweave.types.results import same

__all__ = ["same"]
