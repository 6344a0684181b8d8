"""Judge an attack by its effects outside the session, promise by promise."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attacks.corpus import Attack

MARGIN_S = 4.0
"""What a machine may add to a deadline that is as busy as it has processors."""

TEXT_BYTES = 128 << 10
"""The most that a field other than stdout and stderr may weigh as text: `repr`s, tracebacks."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the host saw of one step.

    Attributes:
        texts: By field: stdout, stderr, return_repr, exception_message, traceback, and so on.
        value: What came out as the step's value.
        seconds: How long the caller waited.
        hung: Whether the caller still waited when patience ran out.
        raised: An exception of the host; `None` if there was none.
        was_over: Whether the session had ended in an earlier step, by its own code.
    """

    success: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    value: Any = None
    seconds: float = 0.0
    hung: bool = False
    raised: str | None = None
    was_over: bool = False
    ended: bool = False
    exception_type: str | None = None


@dataclass(kw_only=True)
class Evidence:
    """Everything that is known of an attack once it is over.

    Attributes:
        steps: What each step came to.
        connections: Who came to the host's listeners.
        templates_died: The templates that were there before and are not now.
        host_errors: What the host raised outside of the steps.
        sibling_expected: What the neighbour has had since before the attack.
        after: A step `6 * 7` in the same session; `None` if it was not tried.
        left: The processes that outlived the session.
        closing_s: How long closing it took.
        crowd: How many processes wanted each processor meanwhile, at least 1.
        fresh_expected: What a new session showed before the attack.
        nonce: What the last step must print, made up after the step before it was over.
        answers: What a grader would compare with `answer`.
    """

    attack: Attack
    secret: str
    answer: int
    grace_s: float
    output_bytes: int
    message_bytes: int
    steps: list[Seen] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    templates_died: list[int] = field(default_factory=list)
    host_errors: list[str] = field(default_factory=list)
    sibling_expected: Any = None
    sibling: Seen | None = None
    after: Seen | None = None
    left: list[str] = field(default_factory=list)
    closing_s: float = 0.0
    crowd: float = 1.0
    fresh_expected: tuple[Any, str] | None = None
    fresh: Seen | None = None
    nonce: str | None = None
    answers: list[Any] = field(default_factory=list)


def judge(evidence: Evidence) -> dict[str, str]:
    """Return the promises that were broken, and how; empty if the walls held."""
    broken: dict[str, str] = {}
    for promise in evidence.attack.must_hold:
        how = _CHECKS[promise](evidence)
        if how is not None:
            broken[promise] = how
    return broken


def _not_escaped(evidence: Evidence) -> str | None:
    # A traceback quotes the code, and the code has the word in it.
    for index, step in enumerate(evidence.steps):
        for name, text in step.texts.items():
            if name != "traceback" and "ESCAPED" in text:
                return f"step {index + 1}, {name}: {text[:300]!r}"
    return None


def _no_leak(evidence: Evidence) -> str | None:
    steps = [(f"step {number}", step) for number, step in enumerate(evidence.steps, 1)]
    later = [evidence.after, evidence.fresh, evidence.sibling]
    steps += [("a later step", step) for step in later if step is not None]
    targets = [
        *((f"{which}, {name}", text) for which, step in steps for name, text in step.texts.items()),
        *(("a listener", sent) for sent in evidence.connections),
        *(("an answer", repr(one)) for one in evidence.answers),
    ]
    forms = list(_forms(evidence.secret))
    for target, text in targets:
        if any(form in text for form in forms):
            return f"the secret is in {target}"
    return None


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret as it may travel: plain, reversed, in hex, in base64 at any offset."""
    raw = secret.encode()
    yield from (secret, secret[::-1], raw.hex(), raw.hex().upper())
    for offset in range(3):
        # The first and last characters depend on what stands around.
        yield base64.b64encode(b"\0" * offset + raw).decode()[4:-4]


def _host_ok(evidence: Evidence) -> str | None:
    if evidence.host_errors:
        return f"the host raised {evidence.host_errors[0]}"
    for index, step in enumerate(evidence.steps):
        if step.raised is not None:
            return f"step {index + 1} raised in the host: {step.raised}"
    if evidence.templates_died:
        return f"templates died: {evidence.templates_died}"
    return None


def _sibling_ok(evidence: Evidence) -> str | None:
    seen = evidence.sibling
    if seen is None:
        return "the neighbouring session was not checked"
    if seen.raised is not None or not seen.success:
        return f"the neighbour fails: {_describe(seen)}"
    if seen.value != evidence.sibling_expected:
        return f"the neighbour has {seen.value!r} instead of {evidence.sibling_expected!r}"
    return None


def _bounded_time(evidence: Evidence) -> str | None:
    margin = MARGIN_S * evidence.crowd
    bound = evidence.attack.timeout_s + evidence.grace_s + margin
    for index, step in enumerate(evidence.steps):
        if step.hung or step.seconds > bound:
            return f"step {index + 1} took {step.seconds:.1f} s; its bound is {bound:.1f} s"
    if evidence.closing_s > margin:
        return f"closing the session took {evidence.closing_s:.1f} s"
    return None


def _bounded_output(evidence: Evidence) -> str | None:
    for index, step in enumerate(evidence.steps):
        for name, text in step.texts.items():
            # A byte that is no UTF-8 comes out as a character of three.
            streams = 3 * evidence.output_bytes + 1024
            most = {"stdout": streams, "stderr": streams, "value": 8 * evidence.message_bytes}
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > most.get(name, TEXT_BYTES):
                return f"step {index + 1}, {name}: {size} bytes"
    return None


def _session_ok(evidence: Evidence) -> str | None:
    seen = evidence.after
    if seen is None:
        return "the session was not tried afterwards"
    if seen.raised is not None or not seen.success or seen.value != 42:
        return f"the session is not usable: {_describe(seen)}"
    return None


def _status_not_ok(evidence: Evidence) -> str | None:
    return "the last step counts as a success" if evidence.steps[-1].success else None


def _error_reported(evidence: Evidence) -> str | None:
    last = evidence.steps[-1]
    if last.success or not last.exception_type:
        return f"no error is reported: {_describe(last)}"
    return None


def _no_connect(evidence: Evidence) -> str | None:
    return f"there were connections: {evidence.connections}" if evidence.connections else None


def _no_procs_after_close(evidence: Evidence) -> str | None:
    return f"left: {evidence.left}" if evidence.left else None


def _fresh_session_clean(evidence: Evidence) -> str | None:
    seen = evidence.fresh
    if seen is None or evidence.fresh_expected is None:
        return "no fresh session was checked"
    if seen.raised is not None or not seen.success:
        return f"a fresh session fails: {_describe(seen)}"
    value, stdout = evidence.fresh_expected
    if seen.value != value or seen.texts.get("stdout") != stdout:
        return f"a fresh session shows {seen.value!r} and prints {seen.texts.get('stdout')!r}"
    return None


def _second_step_real(evidence: Evidence) -> str | None:
    last = evidence.steps[-1]
    if len(evidence.steps) < 2 or evidence.nonce is None:
        return "there was no second step to forge"
    if last.success and evidence.nonce not in last.texts.get("stdout", ""):
        return f"the answer to the last step was made up before it: {_describe(last)}"
    return None


def _answer_not_accepted(evidence: Evidence) -> str | None:
    for value in [*(step.value for step in evidence.steps), *evidence.answers]:
        if _grades(value, evidence.answer):
            return f"{type(value).__name__} {value!r} passes for the answer"
    return None


def _grades(value: Any, answer: int) -> bool:
    """Grade as a careless grader does: by nothing but `==`, whichever side it asks."""
    for left, right in ((answer, value), (value, answer)):
        try:
            if bool(left == right):
                return True
        except Exception:  # noqa: BLE001 - a value that cannot be compared is no answer
            continue
    return False


def _describe(seen: Seen) -> str:
    if seen.raised is not None:
        return seen.raised
    printed = {name: text[:200] for name, text in seen.texts.items() if text}
    return f"success={seen.success} {seen.exception_type or ''} {printed}"


_CHECKS: dict[str, Callable[[Evidence], str | None]] = {
    "not_escaped": _not_escaped,
    "no_leak": _no_leak,
    "host_ok": _host_ok,
    "sibling_ok": _sibling_ok,
    "bounded_time": _bounded_time,
    "bounded_output": _bounded_output,
    "session_ok": _session_ok,
    "status_not_ok": _status_not_ok,
    "error_reported": _error_reported,
    "no_connect": _no_connect,
    "no_procs_after_close": _no_procs_after_close,
    "fresh_session_clean": _fresh_session_clean,
    "second_step_real": _second_step_real,
    "answer_not_accepted": _answer_not_accepted,
}
