"""What holds for the project as a whole: its public names and its imports."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import envweave as ew
from envweave import codeact, metrics, sandbox, testing

ROOT = Path(__file__).parents[1]
REFERENCE = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs/reference").glob("*.md"))
EXTRAS = {
    "docker", "fastapi", "gymnasium", "matplotlib", "mcp", "mkdocs", "pettingzoo",
    "prometheus_client", "pydantic", "pytest", "rich", "smolagents", "starlette", "typer",
    "uvicorn", "uvloop", "websockets",
}  # fmt: skip


PUBLIC = [
    *ew.__all__,
    *(f"testing.{name}" for name in testing.__all__),
    *(f"sandbox.{name}" for name in sandbox.__all__),
    *(f"codeact.{name}" for name in codeact.__all__),
    *(f"metrics.{name}" for name in metrics.__all__),
]
NO_ENTRY = {
    "__version__",
    "codeact",  # its names have entries
    "examples",  # to read, not to build on
    "metrics",  # its names have entries
    "sandbox",  # its names have entries
    "testing",  # its names have entries
    "EnvWeaveError",  # on the page of `errors`, with all of them
}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in NO_ENTRY])
def test_a_public_name_is_in_the_reference(name: str) -> None:
    shown = re.findall(r"^::: envweave\.(\S+)$", REFERENCE, re.MULTILINE)

    assert name in shown


def test_every_public_noun_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    nouns = {name for name in ew.__all__ if name[0].isupper()}

    defined = set(re.findall(r"^(\S.*)\n:   ", glossary, re.MULTILINE))

    assert nouns - defined == set()


def test_importing_the_package_imports_no_dependency() -> None:
    code = "import envweave, json, sys; print(json.dumps(sorted(sys.modules)))"

    loaded = in_a_fresh_process(code)

    roots = {name.partition(".")[0] for name in loaded}
    assert roots & (EXTRAS | {"numpy", "msgspec", "cloudpickle"}) == set()


@pytest.mark.slow  # starts Python anew
@pytest.mark.parametrize("backend", ["inproc", "process", "http"])
def test_stepping_an_environment_imports_no_extra(backend: str) -> None:
    code = f"""
import envweave as ew, json, sys
with ew.make("counter-v0", backend="{backend}") as env:
    env.reset(seed=0)
    env.step({{"delta": 1}})
print(json.dumps(sorted(sys.modules)))
"""

    loaded = in_a_fresh_process(code)

    assert {name.partition(".")[0] for name in loaded} & EXTRAS == set()


def test_the_version_of_the_changelog_is_the_version_of_the_package() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    newest = re.search(r"^## \[?(?P<version>\d+\.\d+\.\d+)", changelog, re.MULTILINE)

    assert newest is not None
    assert newest["version"] == ew.__version__


def test_the_docs_list_exactly_the_announced_backends() -> None:
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    backends = announced["project"]["entry-points"]["envweave.backends"]
    section = (ROOT / "docs/index.md").read_text(encoding="utf-8").partition("## Backends")[2]

    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)

    assert {name for name, text in rows if not text.endswith("planned")} == set(backends)


def in_a_fresh_process(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)
