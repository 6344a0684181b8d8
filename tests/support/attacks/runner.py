"""Run attacks against a sandbox, collect what is visible from outside, and report it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from processes import Process, descendants, is_alive, keeping_orphans

from attacks.corpus import Attack
from attacks.judge import MARGIN_S, Evidence, Seen, judge
from attacks.victim import Victim, victim
from envweave.errors import NameNotFoundError, PlainDataError, SessionEndedError
from envweave.sandbox import ExecutionResult, Limits, Sandbox, Session, Tier

TIMEOUT_S = 20.0
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
class Target:
    """A sandbox, and a session in it that is not attacked."""

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
        seen = run(self.sibling, "[kept, open('kept.txt').read()]", TIMEOUT_S)
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
    targets: dict[str, Target] = field(default_factory=dict)

    def target_for(self, profile: str) -> Target:
        """Return the sandbox for a profile, made on first use."""
        if profile not in self.targets:
            kind = {"python": "python", "fork": "shell"}[profile]
            box = self.make_box(profile=kind, limits=LIMITS, tools={"echo": echo})
            try:
                self.targets[profile] = Target(box, self.victim)
            except BaseException:
                box.close()
                raise
        return self.targets[profile]

    def close(self) -> None:
        """Close every sandbox. Harmless twice."""
        while self.targets:
            _, target = self.targets.popitem()
            target.box.close()


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
    thread.join(timeout_s + LIMITS.grace_s + MARGIN_S + TIMEOUT_S)
    seconds = time.monotonic() - began
    if not box:
        return Seen(hung=True, seconds=seconds)
    outcome = box[0]
    if isinstance(outcome, SessionEndedError):
        return Seen(was_over=True, seconds=seconds)
    if isinstance(outcome, BaseException):
        return Seen(raised=f"{type(outcome).__name__}: {outcome}", seconds=seconds)
    return Seen(
        success=outcome.success,
        texts=_texts(outcome),
        value=outcome.return_value,
        seconds=seconds,
        ended=outcome.session_ended,
        exception_type=outcome.exception_type,
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
    target = on.target_for(attack.profile)
    evidence = Evidence(
        attack=attack,
        secret=on.victim.secret,
        answer=on.victim.answer,
        grace_s=LIMITS.grace_s,
        output_bytes=LIMITS.output_bytes,
        message_bytes=LIMITS.message_bytes,
        fresh_expected=target.fresh,
    )
    on.victim.connections()
    templates = target.box.template_pids()
    before = descendants()

    session = target.box.session()
    try:
        _need_health(session)
        _take_steps(attack, session, target, evidence)
        if "session_ok" in attack.must_hold:
            evidence.after = run(session, "6 * 7", TIMEOUT_S)
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
        with target.box.session() as fresh:
            evidence.fresh = run(fresh, FRESH_PROBE, TIMEOUT_S)
    for neighbour in on.targets.values():  # report the one that was harmed
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


def _take_steps(attack: Attack, session: Session, target: Target, evidence: Evidence) -> None:
    for index, template in enumerate(attack.steps):
        if index:
            time.sleep(attack.pause_s)
        code = _filled(template, session, target)
        if "second_step_real" in attack.must_hold and index and index + 1 == len(attack.steps):
            evidence.nonce = secrets.token_hex(16)
            code = f"print({evidence.nonce!r})\n{code}"
        seen = run(session, code, attack.timeout_s)
        evidence.steps.append(seen)
        if seen.hung:
            return


def _filled(template: str, session: Session, target: Target) -> str:
    if "<<" not in template:
        return template
    names = target.victim.placeholders(template)
    names["ZYGPID"] = str(target.box.template_pids()[0])
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
        # The dead whose parents are gone are ours to reap, since orphans come to us.
        for process in later:
            if process.is_dead and process.parent == os.getpid():
                process.reap()
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
    output: str
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
    output = [step.texts.get("stdout", "") or step.exception_type or "" for step in evidence.steps]
    known = ""
    if set(broken) == {"not_escaped"}:
        known = attack.known.get(on.target_for(attack.profile).box.tier.name, "")
    return Verdict(attack, broken, seconds, json.dumps(output)[:300], known)


@dataclass(frozen=True)
class Report:
    """The verdicts on one tier."""

    tier: Tier
    verdicts: list[Verdict]

    @property
    def held(self) -> int:
        """How many attacks broke no promise."""
        return sum(verdict.held for verdict in self.verdicts)

    @property
    def surprises(self) -> int:
        """How many broke one without being known to."""
        return sum(not (verdict.held or verdict.known) for verdict in self.verdicts)

    def as_json(self) -> str:
        """Return it for programs."""
        return json.dumps(
            {
                "tier": self.tier.name,
                "missing": list(self.tier.missing),
                "user": os.geteuid(),
                "kernel": platform.release(),
                "played": len(self.verdicts),
                "held": self.held,
                "attacks": [
                    {
                        "id": verdict.attack.id,
                        "family": verdict.attack.family,
                        "held": verdict.held,
                        "broken": verdict.broken,
                        "known": verdict.known,
                        "seconds": round(verdict.seconds, 3),
                        "output": verdict.output,
                    }
                    for verdict in self.verdicts
                ],
            },
            indent=1,
        )

    def as_table(self) -> str:
        """Return it for people: a row a family, then what got through."""
        families = sorted({verdict.attack.family for verdict in self.verdicts})
        rows = [("family", "attacks", "held", "got through", "seconds")]
        rows += [
            _row(name, [one for one in self.verdicts if one.attack.family == name])
            for name in families
        ]
        rows.append(_row("all", self.verdicts))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [f"Tier {self.tier.name}, user {os.geteuid()}, kernel {platform.release()}", ""]
        for row in rows:
            cells = [
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        for verdict in self.verdicts:
            for promise, how in verdict.broken.items():
                known = f"\n  known: {verdict.known}" if verdict.known else ""
                lines.append(f"\n{verdict.attack.id} broke {promise}: {how}{known}")
        return "\n".join(lines)


def _row(name: str, verdicts: Iterable[Verdict]) -> tuple[str, str, str, str, str]:
    verdicts = list(verdicts)
    held = sum(one.held for one in verdicts)
    seconds = sum(one.seconds for one in verdicts)
    return name, str(len(verdicts)), str(held), str(len(verdicts) - held), f"{seconds:.1f}"
