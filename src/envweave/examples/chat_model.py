"""A model behind an OpenAI-compatible server, asked over plain HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import envweave as ew

Message = dict[str, str]
"""A `role` (`system`, `user` or `assistant`) and the `content`."""

_AGAIN = (408, 429, 500, 502, 503, 504)
_LONGEST_WAIT_S = 30.0
_MOST_BYTES = 16 << 20


class ModelError(ew.EnvWeaveError):
    """A model's server refused, failed, or said what is no answer."""


@dataclass
class ChatModel:
    """Asks a server that speaks `POST /chat/completions`: OpenAI's, vLLM's, llama.cpp's.

    Attributes:
        model: The name of the model there.
        base_url: Up to and including `/v1`; `$OPENAI_BASE_URL` by default.
        api_key: Sent as a bearer token; `$OPENAI_API_KEY` by default, and none if that is not set.
        options: Further fields of every request, such as `temperature` and `max_tokens`.
        timeout_s: How long one answer may take.
        attempts: How often to ask before giving up, where the server is busy or out of order.
    """

    model: str
    base_url: str = ""
    api_key: str | None = field(default=None, repr=False)
    options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 120.0
    attempts: int = 4

    def __post_init__(self) -> None:
        self.base_url = (self.base_url or os.environ.get("OPENAI_BASE_URL", "")).rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            raise ew.errors.OptionError(
                f"base_url={self.base_url!r} names no server. Pass one such as "
                "'http://127.0.0.1:8000/v1', or set OPENAI_BASE_URL."
            )
        if self.attempts < 1:
            raise ew.errors.OptionError(f"attempts={self.attempts!r}: expected at least 1.")
        if self.api_key is None:
            self.api_key = os.environ.get("OPENAI_API_KEY")

    async def ask(self, messages: list[Message]) -> str:
        """Return what the model says next.

        Raises:
            ModelError: The server refused, or still failed at the last attempt.
        """
        return await asyncio.to_thread(self.ask_now, messages)

    def ask_now(self, messages: list[Message]) -> str:
        """Return what the model says next. Blocks."""
        body = json.dumps({"model": self.model, "messages": messages, **self.options}).encode()
        for attempt in range(1, self.attempts + 1):
            try:
                return _content(self._post(body))
            except urllib.error.HTTPError as error:
                said = _said(error)
                if error.code not in _AGAIN or attempt == self.attempts:
                    raise ModelError(f"{self.base_url} answered {error.code}: {said}") from None
                wait_s = _wait_s(error.headers.get("Retry-After"), attempt)
            except (OSError, http.client.HTTPException) as error:
                if attempt == self.attempts:
                    reason = getattr(error, "reason", None) or error
                    raise ModelError(f"{self.base_url} cannot be reached: {reason}") from error
                wait_s = _wait_s(None, attempt)
            time.sleep(wait_s)
        raise AssertionError("unreachable")

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(  # noqa: S310 - http and https alone, see __post_init__
            f"{self.base_url}/chat/completions", body, headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:  # noqa: S310
            data: bytes = reply.read(_MOST_BYTES)
        return data


def _content(reply: bytes) -> str:
    try:
        content = json.loads(reply)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        shown = reply[:200].decode(errors="replace")
        raise ModelError(f"The server's answer is no chat completion: {shown!r}") from error
    if content is None:
        return ""
    if not isinstance(content, str):
        raise ModelError(f"The content of the answer is no text: {type(content).__name__}")
    return content


def _said(error: urllib.error.HTTPError) -> str:
    with error:
        text = error.read(2000).decode(errors="replace")
    try:
        told = json.loads(text)["error"]
        return str(told["message"] if isinstance(told, dict) else told)
    except (ValueError, LookupError, TypeError):
        return text.strip() or str(error.reason)


def _wait_s(retry_after: str | None, attempt: int) -> float:
    try:
        wanted = float(retry_after or "nan")
    except ValueError:  # a date: rare, and the next attempt tells
        wanted = math.nan
    if math.isnan(wanted):
        wanted = 0.5 * 2.0**attempt
    return min(max(wanted, 0.0), _LONGEST_WAIT_S)
