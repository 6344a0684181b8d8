"""The site: titles, generated pages and pictures, and plain English."""

import importlib.machinery
import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
TAGLINE = "Write an RL environment once. Run it anywhere. Trust every reward."


@pytest.fixture(scope="module")
def docs_assets() -> types.ModuleType:
    """The script that writes generated pages and pictures."""
    loader = importlib.machinery.SourceFileLoader("docs_assets", str(ROOT / "scripts/docs-assets"))
    spec = importlib.util.spec_from_loader("docs_assets", loader)
    assert spec is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def title_of(page: str) -> str:
    found = re.search(r"^# (.+?)(?: \{.*\})?$", (DOCS / page).read_text(encoding="utf-8"), re.M)
    assert found is not None, page
    return found[1]


def test_the_title_of_a_page_is_its_name_in_the_navigation() -> None:
    named = re.findall(r"^ +- ([^:\n]+): (\S+\.md)$", NAV, re.MULTILINE)

    differing = [
        (name, page)
        for name, page in named
        if not page.startswith("changelog") and not title_of(page).startswith(name)
    ]

    assert differing == []


def test_no_two_pages_have_the_same_title() -> None:
    pages = re.findall(r"(\S+\.md)$", NAV, re.MULTILINE)

    titles = [title_of(page) for page in pages if page != "changelog.md"]

    assert sorted(titles) == sorted(set(titles))


@pytest.mark.parametrize(
    "path",
    ["README.md", "docs/index.md", "mkdocs.yml", "pyproject.toml", "src/envweave/__init__.py"],
)
def test_the_tagline_is_the_same_everywhere(path: str) -> None:
    assert TAGLINE in (ROOT / path).read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 170


def test_the_docs_use_plain_english() -> None:
    idiom = re.compile(
        r"is told|whoever|nobody|somebody|had from|runs in circles|what came of", re.IGNORECASE
    )
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]

    found = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if idiom.search(line)
    ]

    assert len(found) <= 10, found


def test_the_dark_pictures_are_up_to_date(docs_assets: types.ModuleType) -> None:
    stale = [
        path.name
        for path, text in docs_assets.pictures()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]

    assert stale == [], "Run scripts/docs-assets."


@pytest.mark.slow  # runs a command for each environment
@pytest.mark.filterwarnings("ignore")  # a sample of GSM8K is used
def test_the_gallery_is_up_to_date(docs_assets: types.ModuleType) -> None:
    written = (DOCS / "environments/index.md").read_text(encoding="utf-8")

    assert docs_assets.gallery() == written, "Run scripts/docs-assets."


def test_the_gallery_has_every_environment(docs_assets: types.ModuleType) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = pyproject.partition('[project.entry-points."envweave.envs"]')[2].partition("\n\n")[0]

    assert set(re.findall(r'^"(\S+)" =', section, re.MULTILINE)) == set(docs_assets.ENTRIES)


def test_every_module_that_the_architecture_page_names_exists() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")

    missing = [
        path
        for path in re.findall(r"`([\w/]+/\w+\.py)`", page)
        if not (ROOT / "src/envweave" / path).exists()
    ]

    assert missing == []
