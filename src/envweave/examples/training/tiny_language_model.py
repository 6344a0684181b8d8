"""A tiny language model and its tokenizer, made from a config: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SPECIAL = ["<|end|>", "<pad>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(words: Iterable[str]) -> Any:
    """Return a tokenizer of `transformers` for whole words, with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[2]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("eos_token", "pad_token", "unk_token"), SPECIAL, strict=False))
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=SPECIAL[3:], **names
    )
    made.chat_template = TEMPLATE
    return made


def tiny_language_model(tokenizer: Any, *, seed: int = 0, max_length: int = 512) -> Any:
    """Return a Qwen3 of two small layers with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=max_length,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)
