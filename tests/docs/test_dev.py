"""`./dev` sets up once, repairs what is broken, and reports what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Stands in for every interpreter: makes a .venv with itself in it, and notes what is installed.
INTERPRETER = """#!/bin/sh
case "$*" in
*"import sys; print"*) echo 3.11 ;;
*ensurepip*) [ ! -e no-venv ] ;;
"-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*"pip install"*) echo "$*" >>installed && [ ! -e no-network ] ;;
*"import envweave"*) exit 1 ;;
--version) echo "Python 3.11.0" ;;
esac
"""
TOOLS = ["cat", "cksum", "cp", "dirname", "echo", "mkdir", "printf", "rm", "rmdir", "sh"]


class Checkout:
    """A checkout on a machine with only the interpreters that it is given."""

    def __init__(self, path: Path, interpreters: list[str]) -> None:
        self.path = path
        self.bin = path / "bin"
        self.bin.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        for name in interpreters:
            (self.bin / name).write_text(INTERPRETER)
            (self.bin / name).chmod(0o755)
        shutil.copy(ROOT / "dev", path / "dev")
        (path / "pyproject.toml").write_text("[project]\n")
        for name in ("hatch_build.py", "src/envweave/sandbox/_spawn.c"):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path / name)

    def dev(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path / "dev"), *arguments],
            env={"PATH": str(self.bin)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def add_command(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    @property
    def installed(self) -> list[str]:
        """What was installed, oldest first, such as `.[dev]`."""
        noted = self.path / "installed"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [line.rpartition("--editable ")[2] for line in lines]

    @property
    def installs(self) -> int:
        return self.installed.count(".[dev]")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path, ["python3"])


def test_the_first_job_sets_up_and_the_second_does_not(checkout: Checkout) -> None:
    first = checkout.dev("run", "echo", "hello")
    second = checkout.dev("run", "echo", "again")

    assert (first.stdout, second.stdout) == ("hello\n", "again\n")
    assert second.stderr == ""
    assert checkout.installs == 1


def test_training_installs_only_what_it_needs(checkout: Checkout) -> None:
    checkout.add_command("envweave", 'echo "envweave $*"')

    done = checkout.dev("train", "--seed", "1")

    assert done.stdout == "envweave train lineworld --num-envs 16 --episodes 400 --seed 1\n"
    assert checkout.installed == [".[train]"]


def test_another_job_after_training_adds_the_development_tools(checkout: Checkout) -> None:
    checkout.add_command("envweave", "exit 0")
    checkout.dev("train")

    done = checkout.dev("setup")
    checkout.dev("train")

    assert "Installing the development tools" in done.stderr
    assert checkout.installed == [".[train]", ".[dev]"]


def test_uv_installs_where_it_is_available(checkout: Checkout) -> None:
    checkout.add_command("uv", 'echo "uv $*" >>installed')

    checkout.dev("setup")

    assert (checkout.path / "installed").read_text() == (
        "uv pip install --quiet --python .venv/bin/python --editable .[dev]\n"
    )


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ([], ""),
        (["all"], "--tier all"),
        (["slow", "-x"], "--tier slow -x"),
        (["tests/api", "-k", "make"], "tests/api -k make"),
    ],
)
def test_the_tier_of_the_tests_is_named_first(
    checkout: Checkout, arguments: list[str], passed_on: str
) -> None:
    checkout.dev("setup")
    python = checkout.path / ".venv/bin/python"
    python.write_text(python.read_text() + '\ncase "$*" in "-m pytest"*) echo "$*" ;; esac\n')

    done = checkout.dev("test", *arguments)

    common = "-m pytest -n logical --dist loadfile --no-loadscope-reorder"
    assert done.stdout == f"{common} {passed_on}".rstrip() + "\n"


@pytest.mark.parametrize("name", ["pyproject.toml", "src/envweave/sandbox/_spawn.c"])
def test_a_change_of_what_is_built_installs_again(checkout: Checkout, name: str) -> None:
    checkout.dev("setup")
    with (checkout.path / name).open("a") as file:
        file.write("\n")

    done = checkout.dev("setup")

    assert "has changed; installing again" in done.stderr
    assert checkout.installs == 2


def test_a_setup_that_failed_is_not_taken_for_complete(checkout: Checkout) -> None:
    (checkout.path / "no-network").touch()
    failed = checkout.dev("run", "echo", "hello")
    (checkout.path / "no-network").unlink()

    done = checkout.dev("run", "echo", "hello")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert "The last setup was interrupted" in done.stderr
    assert (done.returncode, done.stdout) == (0, "hello\n")


def test_a_running_setup_is_not_disturbed(checkout: Checkout) -> None:
    checkout.dev("setup")
    (checkout.path / ".venv/made-by-dev").write_text(f"busy {os.getpid()}\n")

    done = checkout.dev("setup")

    assert done.returncode == 1
    assert f"Another ./dev (process {os.getpid()})" in done.stderr
    assert checkout.installs == 1


def test_a_moved_checkout_is_set_up_again(checkout: Checkout, tmp_path: Path) -> None:
    checkout.dev("setup")
    mark = tmp_path / ".venv/made-by-dev"
    mark.write_text(mark.read_text().replace(str(tmp_path), "/elsewhere"))

    done = checkout.dev("setup")

    assert "making it anew" in done.stderr
    assert checkout.installs == 2


def test_an_environment_of_the_users_own_is_never_removed(checkout: Checkout) -> None:
    own = checkout.path / ".venv/mine"
    own.parent.mkdir()
    own.touch()

    done = checkout.dev("test")

    assert done.returncode == 1
    assert "a .venv that ./dev did not make" in done.stderr
    assert own.exists()


def test_without_python_the_error_gives_the_install_command(tmp_path: Path) -> None:
    done = Checkout(tmp_path, []).dev("test")

    assert done.returncode == 1
    assert "No Python 3.11 or newer was found." in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_python_without_venv_names_the_package_that_brings_it(checkout: Checkout) -> None:
    (checkout.path / "no-venv").touch()

    done = checkout.dev("test")

    assert done.returncode == 1
    assert "sudo apt install python3.11-venv" in done.stderr


def test_an_unknown_job_is_answered_with_the_known_ones(checkout: Checkout) -> None:
    done = checkout.dev("tets")

    assert done.returncode == 2
    assert "There is no job called 'tets'." in done.stderr
    assert "  test [options]" in done.stderr
    assert checkout.installs == 0


def test_without_arguments_it_prints_help(checkout: Checkout) -> None:
    done = checkout.dev()

    assert done.returncode == 0
    assert done.stdout.startswith("usage: ./dev <job>")
