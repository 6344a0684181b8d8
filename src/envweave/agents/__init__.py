"""Agents whose actions are a model's replies: `ChatAgent`, `ReplyAgent`, `ChatModel`."""

from envweave.agents.chat_agent import ChatAgent, ReplyAgent
from envweave.agents.chat_model import (
    ChatModel,
    ContextLengthError,
    Message,
    ModelError,
    ModelReply,
)
from envweave.conversation import ChatTurn, Tokens, Truncate, training_tokens

__all__ = [
    "ChatAgent",
    "ChatModel",
    "ChatTurn",
    "ContextLengthError",
    "Message",
    "ModelError",
    "ModelReply",
    "ReplyAgent",
    "Tokens",
    "Truncate",
    "training_tokens",
]
