"""Play an attack against a sandbox, and gather what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from attack_corpus import Attack
from attack_judge import MARGIN_S, Evidence, Seen, judge
from attack_victim import Victim, victim
from descendants import Process, descendants, is_alive, keeping_orphans

from envweave.errors import NameNotFoundError, PlainDataError, SessionEndedError
from envweave.sandbox import ExecutionResult, Limits, Sandbox, Session

PATIENCE_S = 20.0
"""How long past its bound a call may take before it counts as hung."""

LIMITS = Limits()

FRESH_PROBE = """
import builtins, json, math, os, sys
print("clean", sep="")
[
    all([True, False]), any([]), isinstance(1, str), len([1, 2]), sum([1, 2]), 1 == 2,
    json.loads("[1]"), json.dumps({"a": 1}), math.floor(2.5), sorted([2, 1]),
    sorted(os.listdir(".")), sorted(n for n in dir() if not n.startswith("_")),
    sorted(dir(builtins)), len(sys.meta_path), sys.gettrace() is None,
    [int, str, open, print, eval, exec, compile].index(open), (3).__class__.__name__,
]
"""

MakeBox = Callable[..., Sandbox]
"""Makes a sandbox from the keywords `profile`, `limits` and `tools`."""


def echo(value: Any) -> Any:
    """Return what it is given."""
    return value


@dataclass
class Place:
    """A sandbox, and a session in it that is nobody's target."""

    box: Sandbox
    victim: Victim
    sibling: Session = field(init=False)
    expected: list[Any] = field(init=False)
    fresh: tuple[Any, str] = field(init=False)

    def __post_init__(self) -> None:
        with self.box.session() as session:
            seen = session.run(FRESH_PROBE)
        assert seen.success, seen
        self.fresh = (seen.return_value, seen.stdout)
        self.settle_sibling()

    def settle_sibling(self) -> None:
        """Open a neighbour with a variable, a file and a tool of its own."""
        token = secrets.token_hex(8)
        self.sibling = self.box.session(tools={"secret_tool": lambda: self.victim.secret})
        self.sibling.put("kept", token)
        self.sibling.write_file("kept.txt", token.encode())
        self.expected = [token, token]

    def ask_sibling(self) -> Seen:
        """Return what the neighbour says it has; replace it if it has it no more."""
        seen = run(self.sibling, "[kept, open('kept.txt').read()]", PATIENCE_S)
        if seen.value != self.expected:
            with contextlib.suppress(Exception):
                self.sibling.close()
            self.settle_sibling()
        return seen


@dataclass
class Ground:
    """Where attacks are played: a victim, and a sandbox for each profile that they ask for."""

    make_box: MakeBox
    victim: Victim
    places: dict[str, Place] = field(default_factory=dict)

    def place(self, profile: str) -> Place:
        """Return the sandbox for a profile, made on first use."""
        if profile not in self.places:
            kind = {"python": "python", "fork": "shell"}[profile]
            box = self.make_box(profile=kind, limits=LIMITS, tools={"echo": echo})
            try:
                self.places[profile] = Place(box, self.victim)
            except BaseException:
                box.close()
                raise
        return self.places[profile]

    def close(self) -> None:
        """Close every sandbox. Harmless twice."""
        while self.places:
            _, place = self.places.popitem()
            place.box.close()


@contextlib.contextmanager
def ground(make_box: MakeBox) -> Iterator[Ground]:
    """Have a victim and sandboxes, until the block ends."""
    with victim() as host, keeping_orphans():
        one = Ground(make_box, host)
        try:
            yield one
        finally:
            one.close()


def run(session: Session, code: str, timeout_s: float) -> Seen:
    """Run code, and return what the host sees of it, whatever happens."""
    box: list[ExecutionResult | BaseException] = []

    def call() -> None:
        try:
            box.append(session.run(code, timeout_s=timeout_s))
        except BaseException as error:  # noqa: BLE001 - evidence
            box.append(error)

    thread = threading.Thread(target=call, daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(timeout_s + LIMITS.grace_s + MARGIN_S + PATIENCE_S)
    seconds = time.monotonic() - began
    if not box:
        return Seen(hung=True, seconds=seconds)
    came = box[0]
    if isinstance(came, SessionEndedError):
        return Seen(was_over=True, seconds=seconds)
    if isinstance(came, BaseException):
        return Seen(raised=f"{type(came).__name__}: {came}", seconds=seconds)
    return Seen(
        success=came.success,
        texts=_texts(came),
        value=came.return_value,
        seconds=seconds,
        ended=came.session_ended,
        exception_type=came.exception_type,
    )


def _texts(result: ExecutionResult) -> dict[str, str]:
    texts = {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": _shown(result.return_value),
        "return_repr": result.return_repr or "",
        "exception_type": result.exception_type or "",
        "exception_message": result.exception_message or "",
        "traceback": result.traceback or "",
    }
    # A session may hand its own arguments to a tool; what matters is what came back.
    calls = [(call.name, call.value, call.error) for call in result.tool_calls]
    return texts | ({"value": texts["value"] + _shown(calls)} if calls else {})


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # a number with more digits than Python likes to write
        return f"a {type(value).__name__} that cannot be shown"


def play(attack: Attack, on: Ground) -> Evidence:
    """Play one attack in a fresh session, and return everything that is known of it."""
    place = on.place(attack.profile)
    evidence = Evidence(
        attack=attack,
        secret=on.victim.secret,
        answer=on.victim.answer,
        grace_s=LIMITS.grace_s,
        output_bytes=LIMITS.output_bytes,
        message_bytes=LIMITS.message_bytes,
        fresh_expected=place.fresh,
    )
    on.victim.connections()
    templates = place.box.template_pids()
    before = descendants()

    session = place.box.session()
    try:
        _need_health(session)
        _take_steps(attack, session, place, evidence)
        if "session_ok" in attack.must_hold:
            evidence.after = run(session, "6 * 7", PATIENCE_S)
        if "answer_not_accepted" in attack.must_hold and session.alive:
            with contextlib.suppress(NameNotFoundError, PlainDataError, SessionEndedError):
                evidence.answers.append(session.get("answer"))
    except Exception as error:  # noqa: BLE001 - evidence
        evidence.host_errors.append(f"{type(error).__name__}: {error}")
    finally:
        evidence.closing_s = _close(session, evidence)
    evidence.crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    evidence.left = [str(process) for process in _left(before)]
    evidence.templates_died = [pid for pid in templates if not is_alive(pid)]
    if "fresh_session_clean" in attack.must_hold:
        with place.box.session() as fresh:
            evidence.fresh = run(fresh, FRESH_PROBE, PATIENCE_S)
    for neighbour in on.places.values():  # the harmed one is the one to tell of
        expected, seen = neighbour.expected, neighbour.ask_sibling()
        if evidence.sibling is None or seen.value != expected:
            evidence.sibling_expected, evidence.sibling = expected, seen
    evidence.connections = on.victim.connections()
    if any(step.hung for step in evidence.steps) or evidence.host_errors:
        on.close()  # nothing is known of these sandboxes any more
    return evidence


def _need_health(session: Session) -> None:
    """Refuse to attack from a session that can do nothing: that would prove nothing."""
    # Asked for and not touched: pages that are written to take longer than most attacks.
    found = session.run("len(bytes(64 << 20)) + len(bytearray(1 << 20))")
    if found.return_value != 65 << 20:
        raise RuntimeError(f"The session was sick before the attack: {found.exception_type}.")


def _take_steps(attack: Attack, session: Session, place: Place, evidence: Evidence) -> None:
    for index, template in enumerate(attack.steps):
        if index:
            time.sleep(attack.pause_s)
        code = _filled(template, session, place)
        if "second_step_real" in attack.must_hold and index and index + 1 == len(attack.steps):
            evidence.nonce = secrets.token_hex(16)
            code = f"print({evidence.nonce!r})\n{code}"
        seen = run(session, code, attack.timeout_s)
        evidence.steps.append(seen)
        if seen.hung:
            return


def _filled(template: str, session: Session, place: Place) -> str:
    if "<<" not in template:
        return template
    names = place.victim.placeholders(template)
    names["ZYGPID"] = str(place.box.template_pids()[0])
    if "<<WORKDIR>>" in template:
        names["WORKDIR"] = session.run("__import__('os').getcwd()").return_value
    return re.sub(r"<<(\w+)>>", lambda match: names[match[1]], template)


def _close(session: Session, evidence: Evidence) -> float:
    began = time.monotonic()
    try:
        session.close()
    except Exception as error:  # noqa: BLE001 - evidence
        evidence.host_errors.append(f"close: {type(error).__name__}: {error}")
    return time.monotonic() - began


def _left(before: set[Process]) -> list[Process]:
    """Return what started since and is still there after a while, and end it."""
    known = {(process.pid, process.started) for process in before}
    deadline = time.monotonic() + MARGIN_S
    while True:
        later = [one for one in descendants() if (one.pid, one.started) not in known]
        # The dead whose parents are gone are ours to bury, since orphans come to us.
        for process in later:
            if process.is_dead and process.parent == os.getpid():
                process.bury()
        left = [one for one in later if not (one.is_dead and one.parent == os.getpid())]
        if not left or time.monotonic() > deadline:
            for process in left:
                process.kill()
            return left
        time.sleep(0.005)


@dataclass(frozen=True)
class Verdict:
    """What became of an attack: the promises it broke, and how.

    Attributes:
        known: Why it was expected to get through; empty if it was not, or did not.
    """

    attack: Attack
    broken: dict[str, str]
    seconds: float
    said: str
    known: str = ""

    @property
    def held(self) -> bool:
        """Whether every promise held."""
        return not self.broken


def try_attack(attack: Attack, on: Ground) -> Verdict:
    """Play an attack, and judge it.

    One that took too long is played again: who can hold a caller up does so every time, and a
    machine that falters for a moment does not.
    """
    began = time.monotonic()
    evidence = play(attack, on)
    broken = judge(evidence)
    if set(broken) == {"bounded_time"} and not any(step.hung for step in evidence.steps):
        evidence = play(attack, on)
        broken = judge(evidence)
    seconds = time.monotonic() - began
    said = [step.texts.get("stdout", "") or step.exception_type or "" for step in evidence.steps]
    known = ""
    if set(broken) == {"not_escaped"}:
        known = attack.known.get(on.place(attack.profile).box.tier.name, "")
    return Verdict(attack, broken, seconds, json.dumps(said)[:300], known)
