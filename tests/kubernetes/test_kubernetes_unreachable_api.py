"""How long an API server may be unreachable before a pod counts as lost."""

from __future__ import annotations

from envweave.providers.kubernetes.pod import OUTAGE_S, SAME_OUTAGE_S, Outage


def test_an_outage_lasts_after_failed_calls_for_long_enough() -> None:
    silence = Outage()

    found = [silence.has_lasted(now_s) for now_s in (100.0, 103.0, 100 + OUTAGE_S, 120.0)]

    assert found == [False, False, True, True]


def test_an_answer_ends_it() -> None:
    silence = Outage()
    silence.has_lasted(100.0)

    silence.end()

    assert not silence.has_lasted(100 + 2 * OUTAGE_S)


def test_two_failures_far_apart_are_not_one_outage() -> None:
    silence = Outage()
    silence.has_lasted(100.0)

    again_s = 100 + 2 * SAME_OUTAGE_S

    assert not silence.has_lasted(again_s)
    assert silence.has_lasted(again_s + OUTAGE_S)
