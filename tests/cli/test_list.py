"""`envweave list`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from envweave.cli import main


def register(here: Path, entry_points: str) -> None:
    """Create an installed package that registers plug-ins."""
    info = here / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_environments_are_listed_with_their_descriptions(envweave):
    ran = envweave("list")

    assert ran.code == 0
    assert "counter-v0 Count up to" in ran.text
    assert "envweave.examples" not in ran.text
    assert "pkg://" not in ran.text
    assert "envweave list --all" in ran.text


def test_with_all_schemes_and_backends_are_listed_and_where_each_is_defined(envweave):
    ran = envweave("list", "--all")

    assert "envweave.examples.counter:CounterEnv" in ran.text
    assert "https:// https://host[:port]: the environment of a server, over TLS." in ran.text
    assert "inproc backend=" in ran.text


def test_lines_fit_into_80_columns(envweave):
    ran = envweave("list", "--all")

    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_the_json_list_names_environments_schemes_and_backends(envweave):
    ran = envweave("list", "--json")

    listed = json.loads(ran.stdout)
    assert set(listed) == {"environments", "schemes", "backends"}
    counter = next(one for one in listed["environments"] if one["name"] == "counter-v0")
    assert counter == {
        "name": "counter-v0",
        "description": "Count up to `done_at`; the reward of a step is the number it added.",
        "defined_in": "envweave.examples.counter:CounterEnv",
        "error": None,
    }
    assert "local" in [one["name"] for one in listed["schemes"]]
    assert "inproc" in [one["name"] for one in listed["backends"]]


@pytest.mark.slow  # starts the command line anew
def test_a_broken_plugin_is_listed_with_its_error_besides_the_working_ones(process, here):
    register(
        here,
        "[envweave.envs]\nbroken-v0 = broken_module:Env\nquitting-v0 = quitting_module:Env\n"
        "[envweave.backends]\nfar = far_module\n",
    )
    (here / "broken_module.py").write_text("import no_such_library\n")
    (here / "quitting_module.py").write_text("import sys\nsys.exit(3)\n")

    ran = process("list", "--json", PYTHONPATH=str(here))

    listed = json.loads(ran.stdout)
    errors = {one["name"]: one["error"] for one in listed["environments"] + listed["backends"]}
    assert ran.code == 0
    assert "No module named 'no_such_library'" in errors["broken-v0"]
    assert "SystemExit: 3" in errors["quitting-v0"]
    assert "thirdparty" in errors["far"]
    assert errors["counter-v0"] is None
    assert errors["inproc"] is None


@pytest.mark.slow  # starts the command line anew
def test_prints_of_a_plugin_on_import_do_not_reach_the_json(process, here):
    register(here, "[envweave.envs]\nloud-v0 = loud_module:Env\n")
    (here / "loud_module.py").write_text("print('hello')\nclass Env:\n    '''Loud.'''\n")

    ran = process("list", "--json", PYTHONPATH=str(here))

    listed = json.loads(ran.stdout)["environments"]
    assert next(one["description"] for one in listed if one["name"] == "loud-v0") == "Loud."
    assert "hello" in ran.stderr


def test_main_reads_the_arguments_of_the_process_by_default(monkeypatch, capsys, here):
    monkeypatch.setattr("sys.argv", ["envweave", "--version"])

    code = main()

    assert code == 0
    assert capsys.readouterr().out.startswith("envweave ")


def test_what_libraries_offer_is_listed_and_searched(envweave, monkeypatch):
    for module in ("reasoning_gym", "pyspiel"):
        monkeypatch.setitem(sys.modules, module, None)

    every = envweave("list", "--available")
    found = json.loads(envweave("list", "--available", "cartpole-v1", "--json").stdout)

    assert "gym:// " in every.text
    assert "gym://Acrobot-v1" in every.text
    assert "all: envweave list --available gym" in every.text
    assert "pip install 'envweave[reasoning-gym]'" in every.text
    by_scheme = {one["scheme"]: one for one in found["available"]}
    assert "gym://CartPole-v1" in by_scheme["gym"]["ids"]
    assert all("cartpole-v1" in one.lower() for one in by_scheme["gym"]["ids"])
    assert "pip install 'envweave[openspiel]'" in by_scheme["openspiel"]["error"]


def test_a_scheme_names_everything_that_its_library_offers(envweave):
    ran = envweave("list", "--available", "gym")

    assert ran.code == 0
    assert "gym://CartPole-v1" in ran.text
    assert "gym://tabular/Blackjack-v0" in ran.text
