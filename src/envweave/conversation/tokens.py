"""`Tokens`: the tokens of a model's replies, exactly as it read and wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from envweave.errors import SpecError


@dataclass(kw_only=True)
class Tokens:
    """The tokens of one reply, or of several in one sequence. They are never encoded again.

    An agent passes them on in `Decision(reply, extra=Tokens(…))`, or in a dict under `"tokens"`.

    Attributes:
        prompt_ids: What the model read.
        completion_ids: What follows: what it wrote, and between two replies what it read.
        logprobs: The log-probability of each of `completion_ids`, 0 where the model wrote none;
            `None` if unknown.
        mask: 1 for each of `completion_ids` that the model wrote, else 0; by default all 1.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float] | None = None
    mask: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mask = self.mask or [1] * len(self.completion_ids)
        for name in ("logprobs", "mask"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.completion_ids):
                raise SpecError(
                    f"{name} has {len(values)} values for {len(self.completion_ids)} completion "
                    "ids. Pass one for each."
                )


def training_tokens(turns: Iterable[Tokens]) -> list[Tokens]:
    """Join the tokens of an episode's replies into as few sequences as possible, in order.

    A reply continues the sequence if its prompt begins with all the tokens before it; what the
    prompt adds has the mask 0. Where a template rewrote the conversation, a new sequence begins, so
    that no token is ever paired with a prefix that the model did not read.
    """
    sequences: list[Tokens] = []
    for turn in turns:
        if sequences and _extend(sequences[-1], turn):
            continue
        sequences.append(
            Tokens(
                prompt_ids=list(turn.prompt_ids),
                completion_ids=list(turn.completion_ids),
                logprobs=None if turn.logprobs is None else list(turn.logprobs),
                mask=list(turn.mask),
            )
        )
    return sequences


def _extend(sequence: Tokens, turn: Tokens) -> bool:
    before = [*sequence.prompt_ids, *sequence.completion_ids]
    if turn.prompt_ids[: len(before)] != before:
        return False
    added = turn.prompt_ids[len(before) :]
    sequence.completion_ids += [*added, *turn.completion_ids]
    sequence.mask += [0] * len(added) + turn.mask
    if sequence.logprobs is not None and turn.logprobs is not None:
        sequence.logprobs += [0.0] * len(added) + turn.logprobs
    else:
        sequence.logprobs = None
    return True
