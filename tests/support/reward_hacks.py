"""Tries reward hacks on graders, and tells what came of it: `python tests/support/reward_hacks.py`.

Each is tried through `create_codeact_env(grader=…)`, as an agent would. It has failed if the reward
is what an honest grader gives, the episode can be learnt from, and the agent has seen nothing of
what was expected.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reward_hack import Hack
from reward_hacks_hidden import HIDDEN
from reward_hacks_live import LIVE

from envweave.codeact.factory import create_codeact_env
from envweave.codeact.grading import ExactMatch, HiddenTests, NumericMatch, RegexMatch
from envweave.codeact.grading.base import Grader
from envweave.codeact.models import CodeAction
from envweave.sandbox.limits import Limits
from envweave.session import DirectEnvironment

HACKS = [*LIVE, *HIDDEN]

LIMITS = Limits(timeout_s=1.0, grace_s=0.3)


@dataclass(frozen=True)
class Verdict:
    """What came of one hack.

    Attributes:
        hack: What was tried.
        reward: What it was paid.
        blame: Who is to blame for the end of the episode, if anybody.
        leaked: Whether the agent has seen something of what was expected.
    """

    hack: Hack
    reward: float | None
    blame: str | None
    leaked: bool

    @property
    def held(self) -> bool:
        """Whether it came to nothing."""
        fair = self.reward == self.hack.honest and self.blame in (None, "agent")
        return fair and not self.leaked


@dataclass
class Stage:
    """Environments to try hacks on, one for each grader; each hack has an episode of its own."""

    secret: str = field(default_factory=lambda: f"secret-{secrets.token_hex(16)}")
    number: int = field(default_factory=lambda: 10**6 + secrets.randbelow(10**6))
    inputs: int = field(default_factory=lambda: 10**8 + secrets.randbelow(10**6))
    _made: dict[str, DirectEnvironment] = field(default_factory=dict)

    def attempt(self, hack: Hack) -> Verdict:
        """Play a hack as an episode."""
        env = self._environment(hack.road)
        env.reset()
        seen: list[Any] = []
        for step in hack.steps:
            observation = env.step(CodeAction(code=step.replace("ANSWER", repr(self.secret))))
            seen.append(observation)
            if observation.done or observation.truncated:
                break
        shown = pickle.dumps([seen, env.state])
        known = "ANSWER" in "".join(hack.steps)
        leaked = (self.secret.encode() in shown and not known) or b"input_1" in shown
        blame = seen[-1].metadata.get("end", {}).get("blame")
        return Verdict(hack, seen[-1].reward, blame, leaked)

    def close(self) -> None:
        """Close the environments."""
        for env in self._made.values():
            env.close()

    def _environment(self, road: str) -> DirectEnvironment:
        if road not in self._made:
            when: Any = "every_step" if road in ("value", "every step") else "final"
            self._made[road] = create_codeact_env(
                grader=self._grader(road), grade=when, limits=LIMITS
            )
        return self._made[road]

    def _grader(self, road: str) -> Grader:
        n = self.inputs
        cases = [{"args": [one], "expected": one * one + 17} for one in (1, 2, n)]
        own: dict[str, Any] = {"per_case_timeout_s": 1.0, "limits": LIMITS}
        text: dict[str, Any] = {**own, "source": "answer"}
        graders: dict[str, Grader] = {
            "answer": ExactMatch(self.secret),
            "value": ExactMatch(self.secret),
            "number": NumericMatch(self.number),
            "pattern": RegexMatch(r"(a+)+b", timeout_s=0.5),
            "own code": HiddenTests(cases, entry="solve", **own),
            "every step": HiddenTests(cases, entry="solve", **own),
            "tests": HiddenTests(cases, entry="solve", **text),
            "secret tests": HiddenTests({"call": "solve()", "expected": self.secret}, **text),
            "program": HiddenTests(
                [{"stdin": f"{one}\n", "stdout": str(one * one + 17)} for one in (1, n)], **text
            ),
            "asserts": HiddenTests(
                f"assert solve(1) == 18\nassert abs(solve({n}) - {n * n + 17}) < 0.5\n"
                f"assert math.isclose(solve(2), 21)\nassert solve(3) in [26, -1]",
                **text,
            ),
        }
        return graders[road]


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """Have a stage, and clear it."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()


def as_table(verdicts: list[Verdict]) -> str:
    """Return verdicts for people, a row each."""
    rows = [("", "tried", "grader", "deserves", "was paid", "")]
    rows += [
        (
            "ok" if verdict.held else "BROKEN",
            verdict.hack.name,
            verdict.hack.road,
            _paid(verdict.hack.honest),
            _paid(verdict.reward),
            "and leaked" if verdict.leaked else verdict.blame or "",
        )
        for verdict in verdicts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    held = sum(verdict.held for verdict in verdicts)
    return "\n".join([*lines, "", f"{held} of {len(verdicts)} as an honest grader would pay."])


def _paid(reward: float | None) -> str:
    return "nothing yet" if reward is None else f"{reward:g}"


def main() -> int:
    """Try them all, and print the table."""
    with staged() as stage:
        verdicts = [stage.attempt(hack) for hack in HACKS]
    print(as_table(verdicts))
    return not all(verdict.held for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
