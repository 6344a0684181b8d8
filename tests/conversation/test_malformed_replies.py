"""What becomes of replies as models write them; `malformed_replies.jsonl` has the corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from environments.replies import HINTS, Recorder

import envweave as ew
from envweave.codec import spec_from_hint

CORPUS = [
    json.loads(line)
    for line in Path(__file__).with_name("malformed_replies.jsonl").read_text().splitlines()
]


def shown(case):
    return f"{case['actions']}: {str(case['reply'])[:60]}"


def test_the_corpus_has_a_hundred_replies_in_every_shape():
    assert len(CORPUS) >= 100
    assert sum("error" in case for case in CORPUS) >= 50
    assert {case["actions"] for case in CORPUS} == HINTS.keys()


@pytest.mark.parametrize("case", CORPUS, ids=map(shown, CORPUS))
def test_a_reply_is_the_recorded_action_or_the_recorded_error(case):
    reply = case["reply"]
    if isinstance(reply, dict) and "repeat" in reply:
        reply = reply["repeat"] * reply["times"]
    env = Recorder(case["actions"])
    chat = ew.chat(ew.make(env))
    chat.reset()

    result = chat.step(reply)

    assert result.step_index == 1
    assert not result.done
    json.dumps(chat.messages(), ensure_ascii=False).encode()  # can be sent to any model
    if "error" in case:
        assert env.taken == []
        assert result.reward == 0.0
        # How Python words what is wrong with JSON differs between its versions.
        assert result.info["invalid_reply"].startswith(case["error"])
        assert result.info["metrics"]["invalid_replies"] == 1
    else:
        assert env.taken == [spec_from_hint(HINTS[case["actions"]]).check(case["action"])]
        assert result.reward == 1.0
