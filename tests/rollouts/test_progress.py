"""What a rollout shows while it runs."""

from __future__ import annotations

import io
import sys

import pytest
from environments.tasks import flaky, forward

import envweave as ew


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    return terminal


def play(**options) -> None:
    with ew.pool("counter-v0", size=2) as pool:
        ew.rollout(pool, lambda result: {"delta": 3}, episodes=5, **options).run()


def test_a_terminal_gets_a_bar_with_the_figures(monkeypatch):
    terminal = at_a_terminal(monkeypatch)

    play()

    output = terminal.getvalue()
    assert "5/5" in output
    assert "reward" in output
    assert "+3.000" in output
    assert "faults" in output
    assert "/s" in output


def test_a_bar_may_be_declined(monkeypatch):
    terminal = at_a_terminal(monkeypatch)

    play(progress=False)

    assert terminal.getvalue() == ""


def test_without_a_terminal_nothing_is_shown_unless_asked_for(capsys):
    play()

    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_lines_are_shown_if_asked_for(capsys):
    play(progress=True)

    *_, last = capsys.readouterr().err.splitlines()
    assert last.split()[:6] == ["5/5", "episodes", "reward", "+3.000", "faults", "0"]


def test_without_rich_a_terminal_gets_nothing_unless_asked_for(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich", None)

    play()
    assert terminal.getvalue() == ""

    play(progress=True)
    assert "5/5 episodes" in terminal.getvalue()


def test_faults_are_counted_while_they_are_replaced(capsys):
    kind, _ = flaky(lambda task, before: "step" if before == 0 else None)

    with ew.pool(kind, size=1) as pool:
        ew.rollout(pool, forward, tasks=["a", "b"], progress=True).run()

    *_, last = capsys.readouterr().err.splitlines()
    assert last.split()[:6] == ["2/2", "episodes", "reward", "+1.000", "faults", "2"]


def test_an_unknown_total_is_left_out(capsys):
    kind, _ = flaky(lambda task, before: None)
    with ew.pool(kind, size=1) as pool:
        rollout = ew.rollout(pool, forward, tasks=(name for name in "ab"), progress=True)
        rollout.run()

    assert rollout.total is None
    assert capsys.readouterr().err.split()[:2] == ["1", "episodes"]
