"""Tokens of replies, joined into sequences to train on."""

from __future__ import annotations

import pytest

from envweave.agents import Tokens, training_tokens
from envweave.errors import SpecError


def test_replies_that_continue_each_other_are_one_sequence_with_a_mask():
    turns = [
        Tokens(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.1]),
        Tokens(prompt_ids=[1, 2, 3, 4, 5], completion_ids=[6, 7], logprobs=[-0.2, -0.3]),
    ]

    assert training_tokens(turns) == [
        Tokens(
            prompt_ids=[1, 2],
            completion_ids=[3, 4, 5, 6, 7],
            logprobs=[-0.1, 0.0, 0.0, -0.2, -0.3],
            mask=[1, 0, 0, 1, 1],
        )
    ]
    assert turns[0].completion_ids == [3]


def test_a_prompt_that_was_rewritten_begins_another_sequence():
    turns = [
        Tokens(prompt_ids=[1, 2], completion_ids=[3]),
        Tokens(prompt_ids=[1, 9, 3, 4], completion_ids=[5]),
    ]

    assert training_tokens(turns) == turns


def test_logprobs_of_another_length_are_refused():
    with pytest.raises(SpecError, match="logprobs has 1 values for 2 completion ids"):
        Tokens(prompt_ids=[1], completion_ids=[2, 3], logprobs=[-0.1])
