"""The judge of attacks detects each broken promise."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from attacks.corpus import PROMISES, Attack, load, pick
from attacks.judge import Evidence, Seen, judge

SECRET = "5ec7e7" * 8
FINE = Seen(success=True, texts={"stdout": "blocked\n"}, value=None, seconds=0.1)
USABLE = Seen(success=True, texts={"value": "42"}, value=42)


class EqualsEverything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def evidence(*steps: Seen, **known: Any) -> Evidence:
    """An attack with every promise, all of which hold."""
    attack = Attack(
        id="one",
        family="any",
        source="nowhere",
        profile="python",
        timeout_s=2.0,
        must_hold=PROMISES,
        steps=("1", "2"),
    )
    refused = Seen(success=False, texts={"stdout": "n0nce\n"}, exception_type="OSError")
    return Evidence(
        attack=attack,
        secret=SECRET,
        answer=123456789,
        grace_s=0.5,
        output_bytes=1000,
        message_bytes=1 << 20,
        **{
            "steps": list(steps) or [FINE, refused],
            "sibling_expected": ["kept"],
            "sibling": Seen(success=True, value=["kept"]),
            "after": USABLE,
            "fresh_expected": ([1], "clean\n"),
            "fresh": Seen(success=True, value=[1], texts={"stdout": "clean\n"}),
            "nonce": "n0nce",
            **known,
        },
    )


def last(**changes: Any) -> Evidence:
    """The same with another last step."""
    refused = Seen(success=False, texts={"stdout": "n0nce\n"}, exception_type="OSError")
    return evidence(FINE, replace(refused, **changes))


def printed(text: str, where: str = "stdout") -> Evidence:
    return last(texts={"stdout": "n0nce\n", where: text})


BREACHES: list[tuple[str, Callable[[], Evidence]]] = [
    ("not_escaped", lambda: printed("ESCAPED 3")),
    ("not_escaped", lambda: printed("ESCAPED", "stderr")),
    ("not_escaped", lambda: printed("'ESCAPED'", "value")),
    ("not_escaped", lambda: printed("ESCAPED", "exception_message")),
    ("no_leak", lambda: printed(f"here: {SECRET}")),
    ("no_leak", lambda: printed(SECRET, "traceback")),
    ("no_leak", lambda: printed(SECRET[::-1])),
    ("no_leak", lambda: printed(SECRET.encode().hex())),
    ("no_leak", lambda: printed(base64.b64encode(b"A=" + SECRET.encode() + b"\n").decode())),
    ("no_leak", lambda: evidence(answers=[{"x": SECRET}])),
    ("host_ok", lambda: last(raised="RecursionError: too deep")),
    ("host_ok", lambda: evidence(templates_died=[7])),
    ("host_ok", lambda: evidence(host_errors=["OSError: bad file descriptor"])),
    ("sibling_ok", lambda: evidence(sibling=None)),
    ("sibling_ok", lambda: evidence(sibling=Seen(success=True, value=["other"]))),
    ("sibling_ok", lambda: evidence(sibling=Seen(was_over=True))),
    ("sibling_ok", lambda: evidence(sibling=Seen(raised="SessionLostError: gone"))),
    ("bounded_time", lambda: last(seconds=30.0)),
    ("bounded_time", lambda: last(hung=True)),
    ("bounded_time", lambda: evidence(closing_s=30.0)),
    ("bounded_time", lambda: evidence(closing_s=30.0, crowd=4.0)),
    ("bounded_output", lambda: printed("n0nce" + "x" * 100_000)),
    ("bounded_output", lambda: printed("x" * 100_000, "stderr")),
    ("bounded_output", lambda: printed("x" * 1_000_000, "traceback")),
    ("bounded_output", lambda: printed("x" * 100_000_000, "value")),
    ("session_ok", lambda: evidence(after=None)),
    ("session_ok", lambda: evidence(after=Seen(was_over=True))),
    ("session_ok", lambda: evidence(after=replace(USABLE, value=41))),
    ("session_ok", lambda: evidence(after=replace(USABLE, success=False))),
    ("session_ok", lambda: evidence(after=replace(USABLE, raised="SessionLostError: gone"))),
    ("error_reported", lambda: last(exception_type=None)),
    ("no_connect", lambda: evidence(connections=["PORT: b''"])),
    ("no_procs_after_close", lambda: evidence(left=["77 (python3, S)"])),
    ("fresh_session_clean", lambda: evidence(fresh=None)),
    ("fresh_session_clean", lambda: evidence(fresh=Seen(success=False))),
    ("fresh_session_clean", lambda: evidence(fresh=replace(USABLE, value=[2]))),
    (
        "fresh_session_clean",
        lambda: evidence(fresh=Seen(success=True, value=[1], texts={"stdout": ""})),
    ),
    ("second_step_real", lambda: evidence(nonce=None)),
    ("answer_not_accepted", lambda: last(value=EqualsEverything())),
    ("answer_not_accepted", lambda: evidence(answers=[EqualsEverything()])),
    ("answer_not_accepted", lambda: evidence(answers=[123456789.0])),
]


def test_no_promise_is_reported_broken_when_all_hold() -> None:
    assert judge(evidence()) == {}


@pytest.mark.parametrize(("promise", "breach"), BREACHES, ids=lambda one: one if one else "")
def test_a_breach_breaks_exactly_its_promise(promise: str, breach: Callable[[], Evidence]) -> None:
    broken = judge(breach())

    assert list(broken) == [promise]


def test_a_success_breaks_the_promises_of_a_failure() -> None:
    broken = judge(last(success=True, exception_type=None))

    assert set(broken) == {"status_not_ok", "error_reported"}


def test_a_success_without_the_nonce_is_a_forged_answer() -> None:
    broken = judge(last(success=True, texts={"stdout": "forged"}))

    assert "second_step_real" in broken


def test_only_listed_promises_are_judged() -> None:
    known = printed(f"ESCAPED {SECRET}")
    known.attack = replace(known.attack, must_hold=("host_ok",))

    assert judge(known) == {}


def test_a_traceback_that_quotes_the_code_is_not_an_escape() -> None:
    assert judge(printed("    print('ESCAPED' if r else 'blocked')", "traceback")) == {}


def test_each_promise_can_be_broken_in_this_file() -> None:
    tested = {promise for promise, _ in BREACHES} | {"status_not_ok"}

    assert tested == set(PROMISES)


def test_the_corpus_can_be_parsed() -> None:
    attacks = load()

    assert len(attacks) >= 108
    assert {promise for one in attacks for promise in one.must_hold} <= set(PROMISES)


def test_attacks_are_selected_by_id_and_by_family() -> None:
    attacks = load()

    assert [one.id for one in pick(attacks, ["cpu_loop"])] == ["cpu_loop"]
    assert {one.family for one in pick(attacks, ["network"])} == {"network"}
    assert pick(attacks, []) == attacks


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(ValueError, match="'cpu_lop'"):
        pick(load(), ["cpu_lop"])
