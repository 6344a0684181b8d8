from __future__ import annotations

from dataclasses import dataclass

import pytest

import envweave as ew
from envweave.testing import AuditOptions, audit_environment

FEW = AuditOptions(episodes=8, groups=2, group_size=4)


@dataclass
class RiddleAction(ew.Action):
    text: str


@dataclass
class RiddleObservation(ew.Observation):
    prompt: str = ""


def make_riddle(split: str, index: int) -> ew.Task:
    answer = f"answer-number-{7919 * (index + 1) % 100_003}"
    return ew.Task(f"{split}-{index}", split, {"number": index}, private={"answer": answer})


class RiddleEnv(ew.Environment):
    """Say the answer; each option is a mistake that an author might make."""

    tasks = ew.Tasks.endless(make_riddle)

    def __init__(
        self,
        *,
        shows: str = "",
        pays: str = "",
        wrong_solution: bool = False,
        fails_at: str = "",
        drifts: bool = False,
    ) -> None:
        self.shows, self.pays, self.wrong_solution = shows, pays, wrong_solution
        self.fails_at, self.drifts = fails_at, drifts
        self.resets = 0

    def reset(self, *, task: ew.Task, seed: int | None = None) -> RiddleObservation:
        self.resets += 1
        self.answer = task.private["answer"]
        prompt = f"Riddle {task.data['number']}"
        if self.drifts:
            prompt += f", asked {self.resets} times"
        if self.shows == "prompt":
            prompt += f" (not {self.answer})"
        metadata = {"debug": {"expected": [self.answer]}} if self.shows == "info" else {}
        return RiddleObservation(prompt, metadata=metadata)

    def step(self, action: RiddleAction) -> RiddleObservation:
        if self.fails_at and self.fails_at in action.text:
            raise RuntimeError("the grader broke")
        paid = self.pays in action.text if self.pays else action.text == self.answer
        if self.pays == "anything":
            paid = True
        shown = self.answer if self.shows == "after the end" else ""
        return RiddleObservation(shown, reward=float(paid), done=True)

    def solution(self) -> RiddleAction:
        return RiddleAction("no" if self.wrong_solution else self.answer)

    @property
    def state(self) -> ew.State:
        return RiddleState(expected=self.answer if self.shows == "state" else "")


@dataclass(kw_only=True)
class RiddleState(ew.State):
    expected: str = ""


def verdicts(**mistakes):
    registry = ew.Registry()
    registry.register("local://riddle-v0", RiddleEnv)
    report = audit_environment("riddle-v0", options=FEW, registry=registry, kwargs=mistakes)
    return {one.check: one for one in report.verdicts}


def test_a_sound_environment_passes_with_a_note_about_the_random_policy():
    found = verdicts()

    assert {name: one.status for name, one in found.items()} == {
        "solvable": "ok",
        "baseline": "ok",
        "exploits": "ok",
        "group signal": "warn",
        "private data": "ok",
        "deterministic": "ok",
        "length": "ok",
        "failures": "ok",
    }


@pytest.mark.parametrize(
    ("mistakes", "check", "status", "said"),
    [
        ({"wrong_solution": True}, "solvable", "fail", "solves 0% of 8 episodes"),
        ({"pays": "anything"}, "baseline", "fail", "Nothing earns 1"),
        ({"pays": "Riddle"}, "exploits", "fail", "the prompt"),
        ({"pays": "PASSED"}, "exploits", "fail", "'claims success'"),
        ({"shows": "prompt"}, "private data", "fail", "in the observation for 100%"),
        ({"shows": "info"}, "private data", "fail", "in info for 100% of tasks"),
        ({"shows": "state"}, "private data", "fail", "in state() for 100% of tasks"),
        ({"shows": "after the end"}, "private data", "warn", "after the end"),
        ({"drifts": True}, "deterministic", "fail", "observation of step 0 differs"),
        ({"fails_at": "boxed"}, "failures", "fail", "the grader broke"),
    ],
)
def test_each_mistake_is_found(mistakes, check, status, said):
    found = verdicts(**mistakes)[check]

    assert (found.status, said in found.detail) == (status, True), found.detail


def test_a_failed_episode_is_not_counted_as_a_return_of_0():
    registry = ew.Registry()
    registry.register("local://riddle-v0", RiddleEnv)
    report = audit_environment(
        "riddle-v0", options=FEW, registry=registry, kwargs={"fails_at": "boxed"}
    )

    failed = next(one for one in report.policies if one.name == "always '0'")
    assert failed.mean is None
    assert all(one.blame == "environment" for one in failed.episodes)


def test_a_policy_of_the_caller_is_judged_by_the_variance_of_its_groups():
    def oracle(task, result):
        return {"text": task.private["answer"]}

    def policy(result):
        return {"text": "never right"}

    registry = ew.Registry()
    registry.register("local://riddle-v0", RiddleEnv)
    report = audit_environment(
        "riddle-v0", options=FEW, registry=registry, oracle=oracle, policy=policy
    )

    found = {one.check: one for one in report.verdicts}
    assert found["solvable"].status == "ok"
    assert found["group signal"].status == "fail"
    assert "given policy" in [one.name for one in report.policies]


def test_agents_are_played_in_turn_against_chance():
    report = audit_environment("tictactoe-v0", options=FEW)

    nothing = report.policies[0]
    assert {round(one.totals["x"] + one.totals["o"], 6) for one in nothing.episodes} == {0.0}
    assert any(one.check == "seats" for one in report.verdicts)
    assert report.ok


def test_an_endless_environment_is_stopped_and_named():
    report = audit_environment("echo-v0", options=AuditOptions(episodes=2, max_steps=20))

    found = {one.check: one for one in report.verdicts}
    assert found["length"].status == "warn"


@pytest.mark.slow  # starts servers
def test_an_environment_on_a_server_keeps_solutions_and_private_parts_to_itself():
    options = AuditOptions(episodes=2, groups=1)
    report = audit_environment("codefix-v0", backend="http", options=options)

    found = {one.check: one.status for one in report.verdicts}
    assert (found["solvable"], found["private data"]) == ("unknown", "unknown")
    assert found["failures"] == "ok"


def test_an_exploit_within_the_noise_is_shown_with_what_chance_earns():
    report = audit_environment("codefix-v0", options=AuditOptions(episodes=16))

    (found,) = [one for one in report.verdicts if one.check == "exploits"]
    assert (found.status, found.detail) == (
        "ok",
        "The best of 4, \"always '-'\", earns -0.25; chance earns -0.375, and so few episodes may "
        "differ by that much.",
    )
