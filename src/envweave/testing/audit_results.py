"""What an audit found: its episodes, the outcome of each policy, and a verdict on each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envweave.testing.audit_policies import Kind

Status = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class AuditedEpisode:
    """One episode of an audit.

    Attributes:
        seed: The seed of its reset, if the environment takes one.
        task_id: Its task, if it had one.
        total: The sum of its rewards; `None` if not valid or not scored. With several agents, that
            of the agent under test, while the others act at random.
        totals: The sums of all agents, if there are several.
        success: Its metric `success`, if it has one.
        length: Number of steps.
        reason: Why it ended; `"unfinished"` if the audit stopped it.
        blame: Who caused a failure.
        cause: Description of a failure.
        refused: How many actions were refused.
        reset_s: Duration of the reset.
        step_s: Durations of the steps.
        prompt_chars: Length of the longest text of its first observation.
    """

    seed: int | None
    task_id: str | None
    total: float | None
    totals: Mapping[str, float]
    success: float | None
    length: int
    reason: str
    blame: str | None
    cause: str | None
    refused: int
    reset_s: float
    step_s: Sequence[float]
    prompt_chars: int


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What a policy earned.

    Attributes:
        name: The policy.
        kind: Why it was played.
        episodes: Its episodes.
        mean: Mean return of the valid episodes.
        deviation: Standard deviation of these returns.
        solved: Share of solved episodes, if it is known what that means.
        mean_length: Mean number of steps.
        error: Why it could not be played.
    """

    name: str
    kind: Kind
    episodes: Sequence[AuditedEpisode]
    mean: float | None
    deviation: float | None
    solved: float | None
    mean_length: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict of an audit.

    Attributes:
        check: What was looked at.
        status: `"ok"`, `"warn"`, `"fail"`, or `"unknown"`.
        detail: What was found.
    """

    check: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        id: The environment.
        policies: What each policy earned.
        verdicts: What was found.
        costs: Times in seconds, lengths of prompts, and steps per second.
    """

    id: str
    policies: Sequence[PolicyOutcome]
    verdicts: Sequence[Verdict]
    costs: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether no verdict is `"fail"`."""
        return all(one.status != "fail" for one in self.verdicts)
