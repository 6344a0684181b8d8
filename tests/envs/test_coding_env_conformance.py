"""Environments whose actions are code keep every promise, here, in a worker and behind a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from servers import served

import envweave as ew
from envweave.envs.coding_env import CodeAction, CodingEnvironment
from envweave.testing import Check, EnvironmentConformance, Subject

PYTHON = ["x = [3, 1, 2]", "print(sorted(x)); len(x)", "x[5]", "import random; random.random()"]
SHELL = ["x=3; echo $x", "echo $x >&2; false", "no-such-program", "seq 3 | wc -l"]
END = "import os; os._exit(3)"


def shaped(observation: ew.Observation) -> ew.Observation:
    """Pay by parts, so that there is something to sum."""
    observation.add_reward("length", len(observation.stdout) / 10)
    observation.add_reward("step", -0.1)
    return observation


@pytest.fixture(scope="module", autouse=True)
def sandboxes() -> Iterator[None]:
    """Keep two sandboxes from check to check: to start one takes a while."""
    with ew.make(CodingEnvironment), ew.make(CodingEnvironment, profile="shell"):
        yield


def keep(promise: Check[Subject], subject: Subject) -> None:
    outcome = promise.outcome(subject)
    if outcome.status == "skipped":
        pytest.skip(outcome.detail)
    assert outcome.ok, outcome.detail


class Python(EnvironmentConformance):
    def episode(self) -> list[CodeAction]:
        return [CodeAction(code) for code in [*PYTHON, END]]


class TestCodingEnvironment(Python):
    def make_environment(self) -> CodingEnvironment:
        return CodingEnvironment(transform=shaped)


class TestTerminal(EnvironmentConformance):
    def make_environment(self) -> Any:
        return ew.TimeLimit(CodingEnvironment(profile="shell"), max_steps=len(SHELL))

    def episode(self) -> list[CodeAction]:
        return [CodeAction(code) for code in SHELL]


class TestCodeActEnvironment(Python):
    def make_environment(self) -> Any:
        return ew.create_codeact_env(transform=shaped)


class Served(Python):
    """Every check has sessions of its own, on one server.

    Attributes:
        served: What makes the environments there.
        known: The class by which callers know what it shows.
    """

    served: ClassVar[Any]
    known: ClassVar[type[ew.Environment]]

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> Iterator[str]:
        with served(cls.served, transform=shaped, drain_s=0) as url:
            # The server has a thread from its first session on, and is in this process.
            with ew.make(cls.known, base_url=url) as first:
                first.reset()
            yield url

    def test_keeps(self, promise: Check[Subject], url: str) -> None:  # type: ignore[override]
        def open_env(*, autoreset: bool = False) -> ew.Env:
            return ew.make(self.known, base_url=url, autoreset=autoreset)

        keep(promise, Subject(open_env, self.episode))


@pytest.mark.slow  # starts several sandboxes
class TestServedCodingEnvironment(Served):
    served = known = CodingEnvironment


class TestServedCodeActEnvironment(Served):
    served = staticmethod(ew.create_codeact_env)
    known = ew.CodeActEnvironment


class InAWorker(Python):
    def test_keeps(self, promise: Check[Subject]) -> None:
        def open_env(*, autoreset: bool = False) -> ew.Env:
            return ew.make(self.make_environment, backend="process", autoreset=autoreset)

        keep(promise, Subject(open_env, self.episode))


@pytest.mark.slow  # a process and a sandbox for each environment
class TestCodingEnvironmentInAWorker(InAWorker):
    def make_environment(self) -> CodingEnvironment:
        return CodingEnvironment(transform=shaped)


@pytest.mark.slow
class TestCodeActEnvironmentInAWorker(InAWorker):
    def make_environment(self) -> Any:
        return ew.create_codeact_env(transform=shaped)
