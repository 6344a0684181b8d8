"""Between plain data and the author's classes, and what values each may take."""

from envweave.codec.hints import spec_from_hint
from envweave.codec.spec import AgentsSpec, AnySpec, Bounds, Mismatch, Spec
from envweave.codec.to_builtins import to_plain

__all__ = ["AgentsSpec", "AnySpec", "Bounds", "Mismatch", "Spec", "spec_from_hint", "to_plain"]
