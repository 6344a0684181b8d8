"""Adapters from and to verifiers environments, in both of its generations."""

from envweave.adapters.verifiers.environments import (
    ChatAction,
    ChatObservation,
    ChatTool,
    ChatToolCall,
    TurnMessage,
    from_verifiers,
    to_verifiers,
)

__all__ = [
    "ChatAction",
    "ChatObservation",
    "ChatTool",
    "ChatToolCall",
    "TurnMessage",
    "from_verifiers",
    "to_verifiers",
]
