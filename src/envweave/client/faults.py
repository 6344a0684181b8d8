"""What a server's refusal over plain HTTP means."""

from __future__ import annotations

from typing import Any

from envweave.client.http_calls import Answer
from envweave.errors import AccessError, ActionError, EnvWeaveError, OptionError, ServerError
from envweave.wire.faults import error_of
from envweave.wire.messages import Fault


def error_in(answer: Answer, path: str) -> EnvWeaveError:
    """Return the error that an answer of status 400 or above stands for.

    Where the server is none of ours, the status says which.
    """
    payload = answer.payload
    fault = payload.get("error") if isinstance(payload, dict) else None
    if isinstance(fault, dict) and isinstance(fault.get("code"), str):
        return error_of(Fault(code=fault["code"], message=str(fault.get("message", ""))))
    said = f"The server answered {path} with status {answer.status}{_words(payload)}."
    if answer.status in (401, 403):
        return AccessError(said)
    if answer.status == 422:
        return ActionError(f"action: {said}") if path == "/step" else OptionError(said)
    return ServerError(said)


def _words(payload: Any) -> str:
    if isinstance(payload, dict):
        payload = payload.get("detail", payload.get("error", payload))
    return f": {str(payload)[:500]}" if payload else ""
