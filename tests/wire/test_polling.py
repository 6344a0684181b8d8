"""A peer polls before it sleeps only as long as that pays."""

from __future__ import annotations

from envweave.wire.polling import SpinBackoff


def skipped_until_due(backoff: SpinBackoff) -> int:
    count = 0
    while not backoff.is_due():
        count += 1
    return count


def test_while_messages_come_at_once_it_always_polls() -> None:
    backoff = SpinBackoff()
    skipped = []

    for _ in range(3):
        skipped.append(skipped_until_due(backoff))
        backoff.record(arrived=True)

    assert skipped == [0, 0, 0]


def test_after_each_miss_it_polls_less_often() -> None:
    backoff = SpinBackoff()
    skipped = []

    for _ in range(6):
        backoff.record(arrived=False)
        skipped.append(skipped_until_due(backoff))

    assert skipped == [4, 16, 64, 256, 256, 256]


def test_hits_make_up_for_misses() -> None:
    backoff = SpinBackoff()
    backoff.record(arrived=False)
    skipped_until_due(backoff)

    for _ in range(2):
        backoff.record(arrived=True)
    backoff.record(arrived=False)

    assert skipped_until_due(backoff) == 4
