"""A client for models behind an OpenAI-compatible server, with many concurrent requests."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import os
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from envweave.conversation import ChatAction, Tokens
from envweave.conversation.replies import read_message
from envweave.errors import EnvWeaveError, MissingExtraError, OptionError

if TYPE_CHECKING:
    import httpx2

Message = dict[str, Any]
"""A `role` (`system`, `user`, `assistant` or `tool`) and the `content`, as in OpenAI's chat API."""

_RETRY_STATUSES = (408, 429, 500, 502, 503, 504)
_LONGEST_BACKOFF_S = 30.0
_ADVICE = {
    401: " Pass api_key=…, or set OPENAI_API_KEY.",
    403: " Check the permissions of the key in api_key or OPENAI_API_KEY.",
    404: " Check the model's name, and that base_url includes the API path, usually /v1.",
}


_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length|context (size|window|length)|too many tokens",
    re.IGNORECASE,
)


class ModelError(EnvWeaveError):
    """A model's server refused, failed, or sent an invalid answer."""


class ContextLengthError(ModelError):
    """The conversation is longer than the model's context."""


@dataclass(frozen=True, kw_only=True)
class ModelReply:
    """A model's next message.

    Attributes:
        reply: The message: its text, and the tools that it calls.
        finish_reason: Why the model stopped: `"stop"`, `"length"`, `"tool_calls"`, ….
        prompt_tokens: How many tokens the model read, as the server counts them.
        completion_tokens: How many it wrote.
        tokens: The tokens, if the server returns their ids (`return_token_ids` of vLLM).
    """

    reply: ChatAction
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: Tokens | None = None


@dataclass
class ChatModel:
    """A client for `POST /chat/completions` of OpenAI, vLLM, llama.cpp and others.

    Any number of `ask` calls may wait at the same time, one per running episode. Connections are
    kept while any of them waits, and in an `async with` block also between them. Needs the extra
    `http`.

    Attributes:
        model: The name of the model there.
        base_url: Up to and including `/v1`; `$OPENAI_BASE_URL` by default.
        api_key: Sent as a bearer token; `$OPENAI_API_KEY` by default, and none if that is not set.
        options: Further fields of every request, such as `temperature` and `max_tokens`.
        timeout_s: How long one answer may take.
        attempts: How often to try before giving up, if the server is busy or fails.
    """

    model: str
    base_url: str = ""
    api_key: str | None = field(default=None, repr=False)
    options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 120.0
    attempts: int = 4
    _clients: dict[asyncio.AbstractEventLoop, _Client] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _ssl: ssl.SSLContext | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.base_url = (self.base_url or os.environ.get("OPENAI_BASE_URL", "")).rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            raise OptionError(
                f"base_url={self.base_url!r} is not a valid URL. Pass one such as "
                "'http://127.0.0.1:8000/v1', or set OPENAI_BASE_URL."
            )
        if self.attempts < 1:
            raise OptionError(f"attempts must be >= 1, got {self.attempts!r}.")
        if self.api_key is None:
            self.api_key = os.environ.get("OPENAI_API_KEY")

    async def ask(self, messages: list[Message]) -> str:
        """Return the text of the model's next message.

        Raises:
            ModelError, MissingExtraError: As `complete`.
        """
        return (await self.complete(messages)).reply.content

    async def complete(
        self, messages: list[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> ModelReply:
        """Return the model's next message.

        Args:
            messages: The conversation so far.
            tools: What it may call.

        Raises:
            ContextLengthError: The conversation is too long for the model.
            ModelError: The server refused, or still failed at the last attempt.
            MissingExtraError: httpx2 is not installed.
        """
        httpx2 = _httpx2()
        for attempt in range(1, self.attempts + 1):
            try:
                async with self._open_client() as client:
                    response = await client.post(**self._request(messages, tools))
                outcome = self._read(response, attempt)
            except httpx2.TransportError as error:
                outcome = self._unreachable(error, attempt)
            if isinstance(outcome, ModelReply):
                return outcome
            await asyncio.sleep(outcome)
        raise AssertionError("unreachable")

    def ask_now(self, messages: list[Message]) -> str:
        """Return the text of the model's next message. Blocks.

        Raises:
            ModelError, MissingExtraError: As `complete`.
        """
        httpx2 = _httpx2()
        with httpx2.Client(**self._settings()) as client:
            for attempt in range(1, self.attempts + 1):
                try:
                    response = client.post(**self._request(messages))
                    outcome = self._read(response, attempt)
                except httpx2.TransportError as error:
                    outcome = self._unreachable(error, attempt)
                if isinstance(outcome, ModelReply):
                    return outcome.reply.content
                time.sleep(outcome)
        raise AssertionError("unreachable")

    async def __aenter__(self) -> Self:
        """Keep the connections until the block ends, also between calls."""
        self._enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    @contextlib.asynccontextmanager
    async def _open_client(self) -> AsyncIterator[httpx2.AsyncClient]:
        client = self._enter()
        try:
            yield client
        finally:
            await self._leave()

    def _enter(self) -> httpx2.AsyncClient:
        """Return the client of the running loop, and count one more user."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = _Client(_httpx2().AsyncClient(**self._settings()))
        one = self._clients[loop]
        one.users += 1
        return one.client

    async def _leave(self) -> None:
        """Count one user less, and close the client after the last."""
        loop = asyncio.get_running_loop()
        one = self._clients[loop]
        one.users -= 1
        if not one.users:
            del self._clients[loop]
            await one.client.aclose()

    def _settings(self) -> dict[str, Any]:
        if self._ssl is None and self.base_url.startswith("https://"):
            self._ssl = ssl.create_default_context()  # slow
        httpx2 = _httpx2()
        return {
            "headers": {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            "timeout": httpx2.Timeout(self.timeout_s),
            "verify": self._ssl or False,
        }

    def _request(
        self, messages: list[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        body = {"model": self.model, "messages": messages, **self.options}
        if tools:
            body = {"tools": list(tools), "parallel_tool_calls": False, **body}
        return {"url": f"{self.base_url}/chat/completions", "json": body}

    def _read(self, response: httpx2.Response, attempt: int) -> ModelReply | float:
        """Return the content of an answer, or how long to wait before the next attempt.

        Raises:
            ModelError: The request failed for good.
        """
        status = response.status_code
        if status == 200:
            return _completion(response.content)
        if status not in _RETRY_STATUSES or attempt == self.attempts:
            why = _error_message(response)
            message = f"{self.base_url} answered {status}: {why}"
            if status in (400, 413) and _TOO_LONG.search(f"{why} {_error_code(response)}"):
                raise ContextLengthError(message)
            raise ModelError(message + _ADVICE.get(status, ""))
        retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
        return _backoff_s(attempt) if retry_after_s is None else min(retry_after_s, self.timeout_s)

    def _unreachable(self, error: Exception, attempt: int) -> float:
        """Return how long to wait before the next attempt.

        Raises:
            ModelError: This was the last attempt.
        """
        if attempt == self.attempts:
            reason = str(error) or type(error).__name__
            raise ModelError(f"{self.base_url} cannot be reached: {reason}") from error
        return _backoff_s(attempt)


@dataclass
class _Client:
    """A client of one event loop.

    Attributes:
        client: The HTTP client.
        users: How many use it now.
    """

    client: httpx2.AsyncClient
    users: int = 0


def _httpx2() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtraError.for_extra("Asking a model needs httpx2.", "http") from None
    return httpx2


def _completion(body: bytes) -> ModelReply:
    try:
        answer = json.loads(body)
        choice = answer["choices"][0]
        message = choice["message"]
        if not isinstance(message, dict):
            raise TypeError("the message is not an object")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        shown = body[:200].decode(errors="replace")
        raise ModelError(f"The server's answer is not a chat completion: {shown!r}") from error
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise ModelError(f"The content of the answer must be a str, got {type(content).__name__}")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    finish_reason = choice.get("finish_reason")
    return ModelReply(
        reply=read_message(message),
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        tokens=_tokens(answer, choice),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _tokens(answer: dict[str, Any], choice: dict[str, Any]) -> Tokens | None:
    """Return the tokens of an answer, in the fields that vLLM has for their ids."""
    completion_ids = _numbers(choice.get("token_ids"), int)
    prompt_ids = _numbers(answer.get("prompt_token_ids") or choice.get("prompt_token_ids"), int)
    if completion_ids is None or prompt_ids is None:
        return None
    logprobs = choice.get("logprobs")
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    values = [one.get("logprob") for one in listed or () if isinstance(one, dict)]
    known = _numbers(values, float) if len(values) == len(completion_ids) else None
    return Tokens(prompt_ids=prompt_ids, completion_ids=completion_ids, logprobs=known)


def _numbers(values: Any, kind: type) -> list[Any] | None:
    if not isinstance(values, list):
        return None
    return values if all(type(one) in (int, kind) for one in values) else None


def _error_code(response: httpx2.Response) -> str:
    try:
        return str(json.loads(response.content)["error"]["code"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _error_message(response: httpx2.Response) -> str:
    text = response.content[:2000].decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError, RecursionError):
        return text.strip() or response.reason_phrase


def _retry_after_s(header: str | None) -> float | None:
    """Return how long a server asks to wait, in seconds or until a date."""
    try:
        delay_s = float(header or "nan")
    except ValueError:
        try:
            delay_s = email.utils.parsedate_to_datetime(header or "").timestamp() - time.time()
        except ValueError:
            return None
    return None if math.isnan(delay_s) else max(delay_s, 0.0)


def _backoff_s(attempt: int) -> float:
    longest_s = min(0.5 * 2.0**attempt, _LONGEST_BACKOFF_S)
    return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
