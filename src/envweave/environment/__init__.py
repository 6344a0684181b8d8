"""The author's side: the classes to subclass, and how their return values are read."""

from envweave.environment.base import Environment, MultiAgentEnvironment
from envweave.environment.introspection import RESET_PARAMETERS, Interface

__all__ = ["RESET_PARAMETERS", "Environment", "Interface", "MultiAgentEnvironment"]
