"""Replies of a model that a trainer samples itself, in batches, with their tokens kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from envweave.agents import ChatTurn, Tokens, Truncate
from envweave.conversation import TurnMessage
from envweave.errors import OptionError
from envweave.rollouts import Decision

LINGER_S = 0.01
"""How long a batch waits for the next episode to join it."""

_MARK = "\u2042"

Sample: TypeAlias = Callable[
    [list[list[int]], int], tuple[Sequence[list[int]], Sequence[list[float]] | None]
]
"""Takes prompts and how many tokens to sample at most; returns the tokens, and log-probabilities
if known."""


@final
class TokenSampler:
    """The reply function of a `ReplyAgent` whose model is sampled in batches.

    Episodes that wait for a reply are sampled together. What a prompt adds to the tokens so far is
    encoded by itself; sampled tokens are never encoded again.

    Args:
        tokenizer: A tokenizer of `transformers` with a chat template.
        sample: Samples the replies of a batch. It blocks; the environments go on.
        batch_size: How many replies to sample together at most.
        max_completion_length: How many tokens all of an episode after its first prompt may be.
            There the episode is truncated.
        max_turn_tokens: How many tokens one reply may have.
        context_length: How many tokens the model can read; the episode is truncated there too.
    """

    def __init__(
        self,
        tokenizer: Any,
        sample: Sample,
        *,
        batch_size: int,
        max_completion_length: int,
        max_turn_tokens: int | None = None,
        context_length: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._sample = sample
        self._batch_size = batch_size
        self._max_length = max_completion_length
        self._max_turn = max_turn_tokens or max_completion_length
        self._context_length = context_length
        self._waiting: list[tuple[list[int], int, asyncio.Future[tuple[list[int], Any]]]] = []
        self._sampling: asyncio.Task[None] | None = None
        self._said: dict[str, list[Tokens]] = {}

    async def __call__(self, turn: ChatTurn) -> Decision:
        """Return a reply with its `Tokens`, or the end of the episode at the limit.

        Raises:
            OptionError: An observation shows an image.
        """
        _refuse_images(turn.result.current.messages)
        said = self._said.setdefault(f"{turn.result.episode_id} {turn.agent_id}", [])
        prompt_ids = self._prompt(turn, said)
        used = len(prompt_ids) - len(said[0].prompt_ids) if said else 0
        left = self._max_length - used
        if self._context_length is not None:
            left = min(left, self._context_length - len(prompt_ids))
        if left <= 0:
            return Decision(Truncate("the limit of tokens was reached"))
        ids, logprobs = await self._next_ids(prompt_ids, min(left, self._max_turn))
        tokens = Tokens(prompt_ids=prompt_ids, completion_ids=ids, logprobs=logprobs)
        said.append(tokens)
        if len(ids) >= left and ids[-1] != self._tokenizer.eos_token_id:
            return Decision(Truncate("the limit of tokens was reached"), tokens)
        return Decision(self._tokenizer.decode(ids, skip_special_tokens=True), tokens)

    def _prompt(self, turn: ChatTurn, said: list[Tokens]) -> list[int]:
        if not said:
            return encode(self._tokenizer, render(self._tokenizer, turn.messages, turn.tools))
        last = said[-1]
        new = [one.to_openai() for one in turn.result.current.messages]
        added = between_replies(self._tokenizer, new, last.completion_ids[-1])
        return [*last.prompt_ids, *last.completion_ids, *added]

    async def _next_ids(self, prompt_ids: list[int], limit: int) -> tuple[list[int], Any]:
        future: asyncio.Future[tuple[list[int], Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt_ids, limit, future))
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._sample_batches())
        return await future

    async def _sample_batches(self) -> None:
        while self._waiting:
            count = 0
            while count < len(self._waiting) < self._batch_size:
                count = len(self._waiting)
                await asyncio.sleep(LINGER_S)
            batch, self._waiting = (
                self._waiting[: self._batch_size],
                self._waiting[self._batch_size :],
            )
            try:
                made, logprobs = self._sample(
                    [prompt_ids for prompt_ids, _, _ in batch], max(limit for _, limit, _ in batch)
                )
            except Exception as error:  # noqa: BLE001 - each episode raises it to the trainer
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for index, (_, limit, future) in enumerate(batch):
                if not future.done():
                    known = None if logprobs is None else list(logprobs[index][:limit])
                    future.set_result((list(made[index][:limit]), known))


def _refuse_images(messages: list[TurnMessage]) -> None:
    for message in messages:
        if not isinstance(message.content, str) and any(
            part.get("type") != "text" for part in message.content
        ):
            raise OptionError(
                "An observation shows an image, and a tokenizer reads text only. Pass "
                "chat={'render': …} to describe it, or train with environment_factory."
            )


def render(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """Return a conversation as text, up to where the model goes on."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools or None, add_generation_prompt=True, tokenize=False
    )
    return text


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that a template made."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def between_replies(tokenizer: Any, messages: list[dict[str, Any]], last_id: int) -> list[int]:
    """Return the tokens between a reply and the next: its end, new messages, the next prompt.

    The template is applied to a mark in place of the reply. The end is left out if the model
    sampled it.
    """
    made = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}, *messages]
    ids = encode(tokenizer, render(tokenizer, made, []).rpartition(_MARK)[2])
    return ids[1:] if ids and ids[0] == last_id == tokenizer.eos_token_id else ids
