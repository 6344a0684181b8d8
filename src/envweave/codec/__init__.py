"""Specs: which values are allowed, and conversion between plain data and authors' classes."""

from envweave.codec.hints import spec_from_hint
from envweave.codec.spec import AgentsSpec, AnySpec, Bounds, Mismatch, Spec
from envweave.codec.to_builtins import to_plain

__all__ = ["AgentsSpec", "AnySpec", "Bounds", "Mismatch", "Spec", "spec_from_hint", "to_plain"]
