"""`envweave new`: what it writes, and what it refuses."""

from __future__ import annotations

import ast
import json
import re
import tomllib

import pytest

KINDS = ["single", "multi-agent", "code", "chat"]


def texts(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_is_complete(envweave, here, kind):
    ran = envweave("new", "coin-flip", "--kind", kind)

    files = texts(here / "coin-flip")
    assert ran.code == 0
    assert {
        ".dockerignore",
        ".github/workflows/test.yml",
        ".gitignore",
        "Dockerfile",
        "README.md",
        "pyproject.toml",
        "src/coin_flip/__init__.py",
        "src/coin_flip/app.py",
        "src/coin_flip/client.py",
        "src/coin_flip/environment.py",
        "tests/test_environment.py",
    } <= files.keys()
    assert all(path in ran.stdout for path in files)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_has_the_names_of_the_project(envweave, here, kind):
    envweave("new", "coin-flip", "--kind", kind)

    files = texts(here / "coin-flip")
    for path, text in files.items():
        assert not re.search(
            r"my[_-]env|\bMy[A-Z]|@(summary|factory|usage|files|envweave|pad)@", text
        )
        if path.endswith(".py"):
            ast.parse(text)
    commands = re.findall(r"^\$ envweave .*#", files["README.md"], re.MULTILINE)
    assert len({len(line) for line in commands}) == 1
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "coin-flip"
    assert list(project["entry-points"]["envweave.envs"]) == ["coin-flip-v0"]


def test_class_names_do_not_repeat_the_word_env(envweave, here):
    envweave("new", "maze-env")
    envweave("new", "maze-2")

    assert "class MazeEnv(" in (here / "maze-env/src/maze_env/environment.py").read_text()
    assert "class Maze2Env(" in (here / "maze-2/src/maze_2/environment.py").read_text()


def test_the_folder_can_be_chosen_and_may_be_an_empty_repository(envweave, here):
    (here / "work/.git").mkdir(parents=True)

    ran = envweave("new", "coin-flip", "--dir", "work", "--json")

    report = json.loads(ran.stdout)
    assert (report["id"], report["kind"], report["dir"]) == ("coin-flip-v0", "single", "work")
    assert sorted(report["files"]) == sorted(texts(here / "work"))


def test_nothing_is_overwritten(envweave, here):
    (here / "coin-flip").mkdir()
    (here / "coin-flip/README.md").write_text("mine")

    ran = envweave("new", "coin-flip")

    assert ran.code == 2
    assert "is not empty (it has 'README.md'), and nothing is ever overwritten" in ran.stderr
    assert texts(here / "coin-flip") == {"README.md": "mine"}


def test_a_file_in_the_place_of_the_folder_is_reported(envweave, here):
    (here / "coin-flip").write_text("mine")

    ran = envweave("new", "coin-flip")

    assert ran.code == 2
    assert "The project cannot be written to 'coin-flip'" in ran.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CoinFlip", "is not a name for a project. Use lower-case letters and digits"),
        ("CoinFlip", "Did you mean 'coin-flip'?"),
        ("coin_flip", "Did you mean 'coin-flip'?"),
        ("2-coins", "is not a name for a project"),
        ("../coins", "Did you mean 'coins'?"),
        ("class", "Use class-env."),
        ("tests", "Use tests-env."),
        ("json", "is a module of Python's standard library"),
        ("numpy", "is the name of an installed package (numpy "),
        ("envweave", "is the name of an installed package (envweave "),
        ("lineworld", "The ID 'lineworld-v0' is taken by envweave.examples.lineworld:"),
    ],
)
def test_a_name_that_cannot_work_is_refused(envweave, here, name, message):
    ran = envweave("new", name)

    assert ran.code == 2
    assert message in ran.stderr
    assert texts(here) == {}


def test_an_unknown_kind_is_refused(envweave, here):
    ran = envweave("new", "coin-flip", "--kind", "singel")

    assert ran.code == 2
    assert "multi-agent" in ran.stderr
