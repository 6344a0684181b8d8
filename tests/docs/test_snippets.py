"""Every snippet runs and prints what it says: in the README, on the pages, and in docstrings.

A page is one session at a keyboard, in an empty directory. Its blocks run in order:

- `python` runs in the page's one namespace; with a `title="name.py"` it is written to that file,
  as is a `dockerfile`, which is looked at and not built;
- `text` right below a `python` block is what that block prints;
- `console` holds commands after `$ `, and what they print, if the page shows it; a line `...`
  stands for lines left out, and `# exits with 1` after a command for its exit code. A server that
  ends in `&` runs on until `kill %1`, on a free port whatever port the page shows;
- `json` holds one document a line.
"""

import ast
import contextlib
import doctest
import gc
import importlib.util
import io
import itertools
import json
import pkgutil
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from documentation import Terminal
from ray_cluster import skip_without_ray

import envweave as ew
from envweave.envs import echo_env
from envweave.registry import DEFAULT_REGISTRY

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.md")),
]
SLOW_PAGES = {  # they start servers, worker processes or the command line, many times
    "README.md",
    "docs/environments/index.md",
    "docs/guides/audit.md",
    "docs/explanation/benchmarks.md",
    "docs/guides/code-agents.md",
    "docs/guides/coding-environment.md",
    "docs/guides/connecting.md",
    "docs/guides/dialects.md",
    "docs/guides/docker.md",
    "docs/guides/forking.md",
    "docs/guides/grading.md",
    "docs/guides/kubernetes.md",
    "docs/guides/mcp.md",
    "docs/guides/openenv.md",
    "docs/guides/operating-the-sandbox.md",
    "docs/guides/processes.md",
    "docs/guides/publishing.md",
    "docs/guides/recording.md",
    "docs/guides/rollouts.md",
    "docs/guides/sandbox.md",
    "docs/guides/search-environment.md",
    "docs/guides/serving.md",
    "docs/guides/testing-your-environment.md",
    "docs/guides/tools.md",
    "docs/guides/verifiers.md",
    "docs/guides/viewing-runs.md",
    "docs/guides/web-page.md",
    "docs/reference/command-line.md",
    "docs/tutorial/first-environment.md",
    "docs/tutorial/install.md",
    "docs/tutorial/serve-your-environment.md",
    "src/envweave/envs/coding_env/README.md",
    "src/envweave/envs/echo_env/README.md",
}
RAY_PAGES = {"docs/guides/ray.md"}  # they run in scripts/ray-tests
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(Path(ew.__file__).parent)], "envweave.")
    if not module.name.endswith(".__main__")
)


@dataclass(frozen=True)
class Fence:
    """One block between fences.

    Attributes:
        language: The word after the opening fence; empty if there is none.
        title: The file that the block is the content of, if it says so.
        rest: Whatever else stands after the opening fence.
        code: What is between the fences, without their indentation.
        line: The line of the opening fence, from 1.
        follows: Whether only blank lines lie between this block and the one before.
    """

    language: str
    title: str | None
    rest: str
    code: str
    line: int
    follows: bool


def read_fences(text: str) -> list[Fence]:
    """Return the fenced blocks of a Markdown text, in order."""
    fences: list[Fence] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    follows = False
    for number, line in lines:
        opening = re.match(r"^( *)(`{3,})([\w-]*) *(?:title=\"([^\"]+)\")? *(.*)$", line)
        if opening is None:
            follows = follows and not line.strip()
            continue
        indent, ticks, language, title, rest = opening.groups()
        inner = itertools.takewhile(lambda pair, end=indent + ticks: pair[1].rstrip() != end, lines)
        code = textwrap.dedent("\n".join(line for _, line in inner)) + "\n"
        fences.append(Fence(language, title, rest, code, number, follows))
        follows = True
    return fences


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def keyboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """An empty directory, an empty table of environments, and a module to type into."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DEFAULT_REGISTRY, "_specs", {})  # pages register in the default one
    yield module
    vars(module).clear()
    gc.collect()  # warnings about what a page leaves open appear here, not in another test
    for name, loaded in list(sys.modules.items()):
        if str(getattr(loaded, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with contextlib.closing(Terminal()) as one:
        yield one


@pytest.mark.timeout(600)  # some start a dozen programs
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=name_of(page),
            marks=[
                *[pytest.mark.slow] * (name_of(page) in SLOW_PAGES),
                *[pytest.mark.ray] * (name_of(page) in RAY_PAGES),
            ],
        )
        for page in PAGES
    ],
)
def test_the_snippets_of_a_page_print_the_documented_output(
    page: Path,
    keyboard: types.ModuleType,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fences = read_fences(page.read_text(encoding="utf-8"))
    if name_of(page) in RAY_PAGES:
        skip_without_ray()
        monkeypatch.setenv("RAY_ADDRESS", "local")  # not the cluster of another test

    for fence, below in itertools.zip_longest(fences, fences[1:]):
        place = f"{name_of(page)}:{fence.line}"
        if fence.title:
            Path(fence.title).parent.mkdir(parents=True, exist_ok=True)
            Path(fence.title).write_text(terminal.real(fence.code), encoding="utf-8")
            importlib.invalidate_caches()
        elif fence.language == "python":
            printed = terminal.shown(type_in(terminal.real(fence.code), fence, page, keyboard))
            if below is not None and below.language == "text" and below.follows:
                assert lines_of(printed) == lines_of(below.code), place
        elif fence.language == "console":
            for command, expected in commands_of(fence):
                typed = terminal.type(command, place)
                assert is_shown(typed, expected), f"{place}: {command}\n{typed}"
        elif fence.language == "json":
            for line in lines_of(fence.code):
                json.loads(line)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_of_a_page_escapes_the_tests(page: Path) -> None:
    fences = read_fences(page.read_text(encoding="utf-8"))

    unknown = [
        f"{name_of(page)}:{fence.line}: {fence.language} {fence.rest}"
        for fence in fences
        if fence.language not in {"python", "console", "text", "toml", "json", "dockerfile"}
        or fence.rest
    ]

    assert unknown == []


DOCKERFILES = [
    pytest.param(fence.code, id=f"{name_of(page)}:{fence.line}")
    for page in PAGES
    for fence in read_fences(page.read_text(encoding="utf-8"))
    if fence.language == "dockerfile"
]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_a_dockerfile_is_of_the_shape_that_every_builder_takes(dockerfile: str) -> None:
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    instructions = dict(re.findall(r"^(\w+) (.+)$", dockerfile, re.MULTILINE))

    if lines[0] != "FROM envweave-base:latest":  # which has a user and a port
        assert re.fullmatch(r"ARG BASE=python:\S+", lines[0])
        assert lines[1] == "FROM ${BASE}"
        assert instructions["USER"] not in {"root", "0"}
        assert instructions["EXPOSE"] == "8000"
    assert "/health" in dockerfile[dockerfile.index("HEALTHCHECK ") :]
    assert json.loads(instructions["CMD"])
    newer = re.findall(r"^# *syntax=|<<|--mount|--link|--chmod|--network", dockerfile, re.M)
    assert newer == []  # what the legacy builder does not know


def type_in(typed: str, fence: Fence, page: Path, module: types.ModuleType) -> str:
    # The blank lines make a traceback name the page's own line.
    code = compile("\n" * fence.line + typed, str(page), "exec")
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


def is_shown(printed: str | None, expected: list[str]) -> bool:
    if printed is None or not expected:
        return True
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, "\n".join(lines_of(printed)) + "\n") is not None


def lines_of(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return [line for line in lines if "(raylet)" not in line]  # Ray's own reports, at any time


def source_of(module: str) -> str:
    """Return the source of a module, or nothing for a compiled one."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    if not found.origin.endswith(".py"):
        return ""
    return Path(found.origin).read_text(encoding="utf-8")


SOURCES = {module: source_of(module) for module in MODULES}


def docstrings_of(source: str) -> Iterator[tuple[int, str]]:
    """Return the docstrings in a source, each with the line of what it describes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


EXAMPLES = [
    pytest.param(module, fence.code, id=f"{module}:{line}")
    for module, source in SOURCES.items()
    if "```" in source
    for line, text in docstrings_of(source)
    for fence in read_fences(text)
    if fence.language == "python"
]


@pytest.fixture
def words() -> Iterator[dict[str, object]]:
    """What an example in a docstring may use without saying where it is from."""
    libraries = (typing, ew.testing, ew.examples, echo_env, ew)
    public = {name: getattr(lib, name) for lib in libraries for name in lib.__all__}
    with ew.make_vector("counter-v0", num_envs=2, autoreset=True) as venv:
        known = {
            **public,
            "ew": ew,
            "np": np,
            "venv": venv,
            "policy": lambda current: [{"delta": 1}] * len(current["value"]),
            "value": lambda successor: np.zeros(len(successor["value"])),
            "gamma": 0.9,
            "__name__": "an_example",
        }
        yield known
    known.clear()
    gc.collect()  # as above


@pytest.mark.slow  # runs commands
@pytest.mark.parametrize(("module", "code"), EXAMPLES)
def test_an_example_in_a_docstring_runs(
    module: str,
    code: str,
    words: dict[str, object],
    keyboard: types.ModuleType,
    terminal: Terminal,
) -> None:
    if "127.0.0.1:8000" in code:
        terminal.type("envweave serve echo-v0 &", module)
        code = terminal.real(code)

    with contextlib.redirect_stdout(io.StringIO()):
        # Hints of classes that the example leaves out are never evaluated.
        exec(compile(f"from __future__ import annotations\n{code}", module, "exec"), words)


# Each imports a package that is only in a virtual environment of its own.
ELSEWHERE = re.compile(
    r"envweave\.(adapters\.verifiers\.(?!chat_turns|environments|text_episodes)|backends\.ray|ray\."
    r"|examples\.(training\.(codefix_policy|reporting_groups)|train_lineworld_rllib)|trainers\.)"
)


def test_every_module_can_be_imported() -> None:
    for module in MODULES:
        if not ELSEWHERE.match(module):
            importlib.import_module(module)


@pytest.mark.parametrize(
    "module", [module for module, source in SOURCES.items() if ">>> " in source]
)
def test_a_doctest_prints_the_documented_output(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module))

    assert outcome.failed == 0
