"""`envweave doctor`."""

from __future__ import annotations

import json
import platform

import pytest

import envweave as ew

HIDE = """
import importlib.metadata, sys
from importlib.metadata import PackageNotFoundError
real = importlib.metadata.version
def version(name):
    if name == "gymnasium":
        raise PackageNotFoundError(name)
    return "0.0.1" if name == "matplotlib" else real(name)
importlib.metadata.version = version
from envweave.cli import main
sys.exit(main())
"""


def test_the_machine_and_every_part_are_told(envweave):
    ran = envweave("doctor")

    for told in (
        f"envweave {ew.__version__}",
        platform.python_version(),
        "core: numpy",
        "extra: cli",
        "backend: inproc ready",
        "scheme: pkg ready",
    ):
        assert told in ran.text


def test_the_json_tells_the_same(envweave):
    ran = envweave("doctor", "--json")

    told = json.loads(ran.stdout)
    assert set(told) == {
        *("ok", "python", "executable", "platform", "cpus", "envweave", "core", "extras"),
        *("backends", "schemes", "environments", "sandbox"),
    }
    assert [one["name"] for one in told["core"]] == ["cloudpickle", "msgspec", "numpy", "packaging"]
    assert {"cli", "gym", "pettingzoo", "train"} <= {one["name"] for one in told["extras"]}
    ready = [one["name"] for one in told["backends"] if one["status"] == "ready"]
    assert {"inproc", "process", "http"} <= set(ready)
    assert told["cpus"] >= 1
    assert ran.code == (0 if told["ok"] else 1)


def test_nothing_of_our_own_is_broken(envweave):
    told = json.loads(envweave("doctor", "--json").stdout)

    plugins = told["backends"] + told["schemes"] + told["environments"]
    assert [one for one in plugins if one["status"] == "broken"] == []
    assert told["ok"] is True


@pytest.mark.slow  # starts the command line anew
def test_an_extra_that_is_missing_comes_with_its_command_and_is_no_fault(process):
    ran = process("doctor", "--json", code=HIDE)

    told = json.loads(ran.stdout)
    extras = {one["name"]: one for one in told["extras"]}
    schemes = {one["name"]: one for one in told["schemes"]}
    assert extras["gym"]["installed"] is False
    assert extras["gym"]["install"] == "pip install 'envweave[gym]'"
    assert schemes["gym"]["status"] == "missing"
    assert schemes["gym"]["detail"] == "pip install 'envweave[gym]'"
    assert "too old; 3.8" in extras["train"]["needs"][0]["problem"]
    assert extras["cli"]["installed"] is True


@pytest.mark.slow  # starts the command line anew
def test_the_text_gives_the_exact_install_command(process):
    ran = process("doctor", code=HIDE)

    assert "gymnasium not installed pip install 'envweave[gym]'" in ran.text


@pytest.mark.slow  # starts the command line anew
def test_a_broken_plugin_makes_the_doctor_fail(process, here):
    info = here / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[envweave.backends]\nfar = far_module\n")

    ran = process("doctor", PYTHONPATH=str(here))

    assert ran.code == 1
    assert "✗ backend: far The plug-in 'far' (envweave.backends) of thirdparty" in ran.text
    assert "Something is broken" in ran.text
