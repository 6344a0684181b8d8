"""The chat view: environments as conversations of messages, replies and tools, without I/O."""

from envweave.conversation.chat_env import AsyncChatEnv, ChatEnv
from envweave.conversation.messages import (
    ChatAction,
    ChatObservation,
    ChatTool,
    ChatToolCall,
    TurnMessage,
)
from envweave.conversation.tokens import Tokens, training_tokens
from envweave.conversation.view import ChatOptions, ChatTurn, Truncate

__all__ = [
    "AsyncChatEnv",
    "ChatAction",
    "ChatEnv",
    "ChatObservation",
    "ChatOptions",
    "ChatTool",
    "ChatToolCall",
    "ChatTurn",
    "Tokens",
    "Truncate",
    "TurnMessage",
    "training_tokens",
]
