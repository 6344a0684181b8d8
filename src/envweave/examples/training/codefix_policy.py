"""A tiny transformer that reads a prompt and chooses an operator. Needs torch.

Characters are the tokens. A convolution over them, pooled to one vector for eight characters,
finds pieces of words at any position; a two-layer transformer encoder relates these pieces;
their mean gives a score for each operator and the reward to expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

MAX_CHARACTERS = 256
POOL = 8
"""How many characters are pooled into one vector."""
WARM_UP = 200
"""The learning rate rises for this many updates, then falls with the root of their number."""


@final
class PolicyNetwork(nn.Module):
    """Maps rows of characters to one logit per choice, and the expected reward."""

    def __init__(self, num_choices: int, *, width: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.pieces = nn.Conv1d(width, width, kernel_size=7, padding="same")
        self.positions = nn.Embedding(MAX_CHARACTERS // POOL, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_choices + 1)
        nn.init.normal_(self.characters.weight, std=0.5)
        nn.init.normal_(self.positions.weight, std=0.1)
        # Zeros: an untrained policy is the random one.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, characters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and expected rewards; shorter rows are padded with 0."""
        found = functional.gelu(self.pieces(self.characters(characters).transpose(1, 2)))
        pieces = functional.max_pool1d(found, POOL).transpose(1, 2)
        is_empty = (characters == 0).view(len(characters), -1, POOL).all(2)
        pieces = pieces + self.positions.weight[: pieces.shape[1]]
        read = self.norm(self.encoder(pieces, src_key_padding_mask=is_empty))
        is_text = (~is_empty)[:, :, None]
        scores = self.head((read * is_text).sum(1) / is_text.sum(1))
        return scores[:, :-1], scores[:, -1]


@dataclass(frozen=True)
class PolicyChoice:
    """The choice for each prompt, with the data that an update needs."""

    chosen: NDArray[np.int64]
    log_probability: torch.Tensor
    entropy: torch.Tensor
    expected: torch.Tensor


@final
class Learner:
    """REINFORCE with a learned baseline and normalized advantages, by AdamW."""

    def __init__(self, num_choices: int, *, seed: int, learning_rate: float) -> None:
        torch.manual_seed(seed)
        self._network = PolicyNetwork(num_choices)
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=learning_rate)
        self._learning_rate = learning_rate
        self.updates = 0

    def choose(self, prompts: Sequence[str], rng: np.random.Generator) -> PolicyChoice:
        """Draw a choice for each prompt.

        Every prompt is shifted by a few characters at random, so that words are not learned
        together with their position.
        """
        shifts = rng.integers(POOL, size=len(prompts))
        shifted = ["\0" * shift + prompt for shift, prompt in zip(shifts, prompts, strict=True)]
        logits, expected = self._network(_encode(shifted))
        log_probabilities = logits.log_softmax(1)
        probabilities = log_probabilities.exp()
        passed = probabilities.detach().numpy().cumsum(1) < rng.random((len(prompts), 1))
        chosen: NDArray[np.int64] = np.minimum(passed.sum(1), passed.shape[1] - 1)
        return PolicyChoice(
            chosen,
            log_probabilities[torch.arange(len(prompts)), torch.from_numpy(chosen)],
            -(probabilities * log_probabilities).sum(1),
            expected,
        )

    @torch.no_grad()
    def best(self, prompts: Sequence[str]) -> NDArray[np.int64]:
        """Return the likeliest choice for each prompt."""
        logits, _ = self._network(_encode(prompts))
        best: NDArray[np.int64] = logits.argmax(1).numpy()
        return best

    def update(self, choice: PolicyChoice, rewards: NDArray[np.float64]) -> float:
        """Learn from the rewards, NaN where an episode failed; return the policy's mean entropy."""
        kept = torch.from_numpy(~np.isnan(rewards))
        reward = torch.from_numpy(rewards).float()[kept]
        expected = choice.expected[kept]
        advantage = reward - expected.detach()
        if len(advantage) > 1:
            # The floor keeps a batch of equal rewards from blowing up the baseline's noise.
            advantage = (advantage - advantage.mean()) / advantage.std().clamp(min=0.5)
        entropy = choice.entropy.mean()
        self.updates += 1
        if len(advantage):
            loss = (
                -(advantage * choice.log_probability[kept]).mean()
                + 0.5 * (reward - expected).square().mean()
                - 0.03 * entropy
            )
            progress = self.updates / WARM_UP
            for group in self._optimizer.param_groups:
                group["lr"] = self._learning_rate * min(progress, progress**-0.5)
            self._optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
            self._optimizer.step()
        return float(entropy.detach())

    def state(self) -> dict[str, Any]:
        """Return the state to resume training from."""
        return {
            "network": self._network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self.updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state` returned."""
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def _encode(prompts: Sequence[str]) -> torch.Tensor:
    """Return the prompts as rows of character codes, padded to a multiple of `POOL`."""
    rows = [prompt.encode("ascii", "replace")[:MAX_CHARACTERS] for prompt in prompts]
    length = -(-max(map(len, rows)) // POOL) * POOL
    codes = np.frombuffer(b"".join(row.ljust(length, b"\0") for row in rows), np.uint8)
    return torch.from_numpy(codes.reshape(len(rows), length).astype(np.int64))
