"""Where the real GSM8K is, for the tests that need it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "ENVWEAVE_TEST_GSM8K"


def real_gsm8k() -> Path:
    """Return the folder with the official `train.jsonl` and `test.jsonl`; skip without one.

    `$ENVWEAVE_TEST_GSM8K` names it; else it is looked for as `shared/data/gsm8k` beside the
    checkout, or further up.
    """
    named = os.environ.get(VARIABLE)
    places = [Path(named)] if named else [one / "shared/data/gsm8k" for one in ROOT.parents]
    for place in places:
        if (place / "train.jsonl").is_file() and (place / "test.jsonl").is_file():
            return place
    pytest.skip(f"GSM8K itself is not here. Set {VARIABLE} to a folder with its two files.")
