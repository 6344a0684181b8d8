"""The root of the command, and its error messages."""

from __future__ import annotations

import pytest

import envweave as ew

FAULTY = """
import envweave as ew

class RefusesToBeMade(ew.Environment):
    def __init__(self):
        raise ValueError("no licence")
    def reset(self):
        return 0
    def step(self, action: bool):
        return 0, 0.0, True, False, {}

class FailsToClose(ew.Environment):
    def reset(self):
        return 0
    def step(self, action: bool):
        return 0, 0.0, True, False, {}
    def close(self):
        raise RuntimeError("stuck")
"""


def test_the_command_without_arguments_prints_its_help(envweave):
    ran = envweave()

    assert ran.code == 0
    for command in ("list", "info", "check", "run", "train", "doctor"):
        assert f" {command} " in ran.text
    assert "envweave run gym://CartPole-v1" in ran.text


@pytest.mark.parametrize("command", ["list", "info", "check", "run", "doctor"])
def test_every_command_has_help_that_names_json(envweave, command):
    ran = envweave(command, "--help")

    assert ran.code == 0
    assert "--json" in ran.text


def test_the_version_is_printed(envweave):
    ran = envweave("--version")

    assert (ran.code, ran.stdout) == (0, f"envweave {ew.__version__}\n")


def test_an_unknown_command_names_the_nearest(envweave):
    ran = envweave("lits")

    assert ran.code == 2
    assert ran.stderr.startswith("Error: No such command 'lits'")
    assert "'list'" in ran.stderr
    assert ran.stdout == ""


def test_an_unknown_option_names_the_nearest_and_the_help(envweave):
    ran = envweave("run", "counter-v0", "--sed", "1")

    assert ran.code == 2
    assert "--seed" in ran.stderr
    assert "envweave run --help" in ran.stderr


@pytest.mark.parametrize(
    "arguments", [["--episodes", "0"], ["--episodes", "x"], ["--seed", "-1"], ["--arg", "5"]]
)
def test_an_option_with_a_bad_value_is_refused(envweave, arguments):
    ran = envweave("run", "counter-v0", *arguments)

    assert ran.code == 2
    assert ran.stderr.startswith("Error: ")


@pytest.mark.parametrize("command", ["info", "check", "run"])
def test_an_unknown_id_is_one_line_with_the_nearest(envweave, command):
    ran = envweave(command, "countr-v0", "--json")

    assert ran.code == 2
    assert ran.stdout == ""
    assert ran.stderr == (
        "Error: No environment is registered as 'countr-v0'. Did you mean 'counter-v0'? "
        "See `envweave list`.\n"
    )


def test_an_unknown_scheme_is_refused_with_those_known(envweave):
    ran = envweave("info", "pgk://module:Env")

    assert ran.code == 2
    assert "Did you mean 'pkg'?" in ran.stderr


def test_an_unknown_backend_is_refused_with_those_known(envweave):
    ran = envweave("run", "counter-v0", "--backend", "inprc")

    assert ran.code == 2
    assert "Did you mean 'inproc'?" in ran.stderr


@pytest.mark.parametrize("command", ["info", "check", "run"])
def test_an_environment_that_cannot_be_made_is_reported_without_a_traceback(
    envweave, here, command
):
    (here / "faulty_env.py").write_text(FAULTY)

    ran = envweave(command, "pkg://faulty_env:RefusesToBeMade")

    assert ran.code == 2
    assert "ValueError: no licence (faulty_env.py:6)" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_debug_shows_where_a_mistake_comes_from(envweave):
    with pytest.raises(ew.errors.EnvNotFoundError):
        envweave("--debug", "info", "countr-v0")


def test_an_unexpected_error_names_its_location_and_how_to_see_more(envweave, here):
    (here / "faulty_env.py").write_text(FAULTY)

    ran = envweave("run", "pkg://faulty_env:FailsToClose")

    assert ran.code == 1
    assert "RuntimeError: stuck (faulty_env.py:18)" in ran.stderr
    assert "envweave --debug run pkg://faulty_env:FailsToClose" in ran.stderr
