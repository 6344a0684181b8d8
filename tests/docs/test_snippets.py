"""Every snippet of the README and of the documentation runs, and prints what it says.

A page is one session at a keyboard, in an empty directory. Its blocks run in order:

- `python` runs in the page's one namespace; with a `title="name.py"` it is written to that file;
- `text` right below a `python` block is what that block prints;
- `console` holds commands after `$ `, and what they print, if the page shows it.
"""

import contextlib
import importlib
import io
import itertools
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from fences import Fence, read_fences

from envweave.registry import DEFAULT_REGISTRY

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

RUN = {
    "envweave": [sys.executable, "-c", "from envweave.cli import main; main()"],
    "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"],
    "python": [sys.executable],
}
INSTALLS_OR_TAKES_LONG = {"pip", "uv", "git", "cd", "./dev", "scripts/check", "source"}


@pytest.fixture
def keyboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """An empty directory, an empty table of environments, and a module to type into."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DEFAULT_REGISTRY, "_specs", {})  # pages register in the default one
    yield module
    for name, loaded in list(sys.modules.items()):
        if str(getattr(loaded, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run_and_print_what_it_says(
    page: Path, keyboard: types.ModuleType
) -> None:
    fences = read_fences(page.read_text(encoding="utf-8"))

    for fence, below in itertools.zip_longest(fences, fences[1:]):
        if fence.language == "python" and fence.title:
            Path(fence.title).write_text(fence.code, encoding="utf-8")
            importlib.invalidate_caches()
        elif fence.language == "python":
            printed = type_in(fence, page, keyboard)
            if below is not None and below.language == "text" and below.follows:
                assert lines_of(printed) == lines_of(below.code), f"{page}:{below.line}"
        elif fence.language == "console":
            for command, expected in commands_of(fence):
                printed = type_command(command, f"{page}:{fence.line}")
                if expected:
                    assert lines_of(printed) == expected, f"{page}:{fence.line}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_of_a_page_escapes_the_tests(page: Path) -> None:
    fences = read_fences(page.read_text(encoding="utf-8"))

    unknown = [
        f"{page}:{fence.line}: {fence.language} {fence.rest}"
        for fence in fences
        if fence.language not in {"python", "console", "text", "toml", "json"} or fence.rest
    ]

    assert unknown == []


def type_in(fence: Fence, page: Path, module: types.ModuleType) -> str:
    # The blank lines make a traceback name the page's own line.
    code = compile("\n" * fence.line + fence.code, str(page), "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, vars(module))
    return out.getvalue()


def commands_of(fence: Fence) -> Iterator[tuple[str, list[str]]]:
    lines = fence.code.rstrip().splitlines()
    assert lines[0].startswith("$ "), f"line {fence.line}: a console block begins with a command"
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    for start, stop in itertools.zip_longest(starts, starts[1:]):
        yield lines[start][2:], lines_of("\n".join(lines[start + 1 : stop]))


def type_command(command: str, place: str) -> str:
    words = shlex.split(command, comments=True)
    if words[0] in INSTALLS_OR_TAKES_LONG:
        return ""
    assert words[0] in RUN, f"{place}: nobody knows how to run {words[0]!r}"
    done = subprocess.run(
        [*RUN[words[0]], *words[1:]],
        env={**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": "."},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{place}: {command}\n{done.stdout}"
    return done.stdout


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
