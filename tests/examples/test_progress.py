from __future__ import annotations

import io
import sys

from envweave.examples.progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_the_live_figures():
    terminal = Terminal()

    with show_progress(10, terminal) as show:
        show(10, 0.875, 1.0)

    said = terminal.getvalue()
    assert "10/10" in said
    assert "+0.88" in said
    assert "100%" in said


def test_without_rich_a_terminal_gets_a_line_now_and_then(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal = Terminal()

    with show_progress(20, terminal) as show:
        for finished in range(1, 21):
            show(finished, 0.5, 0.25)

    lines = terminal.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1].split() == ["20/20", "episodes", "return", "+0.50", "success", "25%"]
