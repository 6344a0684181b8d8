"""A tokenizer for the loopback service of `tinker_service.py`: a word is a token.

The first ids are what the policy can say. Several ids have the same text, so encoding a text again
would give other ids than were sampled.
"""

from __future__ import annotations

import zlib

STOP = 0
ANSWERS = ["72", "10", "5", "42", "624", "35", "48", "16"]  # of the first eight training questions
PIECES = ["", *(f"#### {answer}" for answer in ANSWERS), *"ABCD", "#### 72", "A", "hmm"]


class WordTokenizer:
    eos_token_id = STOP
    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [len(PIECES) + zlib.crc32(word.encode()) % 10_000 for word in text.split()]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(PIECES[token] for token in tokens)


def chat_tokenizer():
    """A tokenizer of `transformers`, with a chat template, that needs no download."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<end>", *"ABCD", *(f"word{i}" for i in range(11)), "<unknown>", "<user>", "<model>"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    outer.chat_template = "<user> {{ messages[0]['content'] }} <end> <model>"
    return outer


def trafficlight_tokenizer():
    """A tokenizer of `transformers` for TrafficLight, with the special tokens of Qwen3."""
    import threading

    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    said = ["<|im_end|>", "stop", "go", "wait", *(f"word{i}" for i in range(12))]
    words = [*said, "<|im_start|>", "system", "user", "assistant", "red", "green", "amber", "?"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(
        [AddedToken(f"<|im_{one}|>", special=True) for one in ("start", "end")]
    )
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    encode, lock = outer._encode_plus, threading.Lock()

    def locked(*args, **kwargs):  # the cookbook encodes in several threads, which is not allowed
        with lock:
            return encode(*args, **kwargs)

    outer._encode_plus = locked
    return outer
