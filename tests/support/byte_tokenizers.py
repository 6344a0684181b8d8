"""A tokenizer of bytes, made without a download."""


def byte_tokenizer():
    """Return a tokenizer of bytes with the special tokens of Qwen3."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({one: i for i, one in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in special])
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
