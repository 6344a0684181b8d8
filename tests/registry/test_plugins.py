"""Import paths and plug-ins: what is found, what is broken, and who is to blame."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installations import install as install_package
from installations import refresh_plugins

import envweave as ew
from envweave.cli import main
from envweave.errors import BackendNotFoundError, DefinitionError, EnvIdError, PluginError
from envweave.registry import EnvSpec, load_plugin

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package with entry points for this test."""
    known = set(sys.modules)

    def install(name: str, source: str, entry_points: str, *, folder: str = "site") -> None:
        site = tmp_path / folder
        files = {f"{name}.py": source, f"{name}-1.0.dist-info/entry_points.txt": entry_points}
        install_package(site, name, files)
        monkeypatch.syspath_prepend(str(site))
        refresh_plugins()

    yield install
    monkeypatch.undo()
    refresh_plugins()
    for name in set(sys.modules) - known:
        if name.startswith("fake_"):
            del sys.modules[name]


# Import paths


@pytest.mark.parametrize("path", ["CounterEnv", "make", "Box.inner", "Box.make"])
def test_an_import_path_names_a_class_a_function_or_something_within(install, path):
    source = """
from envweave.examples import CounterEnv
def make(done_at): return CounterEnv(done_at)
class Box:
    inner = CounterEnv
    make = staticmethod(make)
"""
    install("fake_paths", source, "")

    with ew.make(f"pkg://fake_paths:{path}", done_at=1) as env:
        env.reset()

        assert env.step({"delta": 1}).done


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "fake_nowhere:Env",
            "^'fake_nowhere' cannot be imported: there is no module 'fake_nowhere'.$",
        ),
        (
            "envweave.exmaples:CounterEnv",
            "^'envweave.exmaples' cannot be imported: there is no module 'envweave.exmaples'.$",
        ),
        (
            "envweave.examples.counter:CounterEvn",
            r"counter' has no attribute 'CounterEvn'. Did you mean 'CounterEnv'\?",
        ),
        ("envweave.examples.counter:CounterEnv.nope", "has no attribute 'nope'"),
        ("envweave.examples.counter:a..b", "has no attribute 'a'"),
        (".relative:Env", "'.relative' cannot be imported: TypeError"),
    ],
)
def test_an_invalid_import_path_is_reported_with_the_missing_part(path, message):
    with pytest.raises(PluginError, match=message):
        ew.make(f"pkg://{path}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", r"'fake_mod' cannot be imported: ZeroDivisionError: division by zero \(fake_mod"),
        ("import fake_missing", "ModuleNotFoundError: No module named 'fake_missing'"),
        ("from json import nope", "ImportError: cannot import name 'nope' from 'json'"),
        ("def broken(:", r"SyntaxError: .*fake_mod.py, line 1"),
        ("raise SystemExit(3)", "'fake_mod' cannot be imported: SystemExit: 3"),
        (
            "def __getattr__(name):\n    raise RuntimeError('not today')",
            "'fake_mod' cannot be imported: RuntimeError: not today",
        ),
    ],
)
def test_a_module_that_fails_on_import_is_named_with_the_cause(install, source, message):
    install("fake_mod", source, "")

    with pytest.raises(PluginError, match=message) as caught:
        ew.make("pkg://fake_mod:Env")

    assert caught.value.__cause__ is not None


def test_an_import_path_to_something_that_makes_nothing_is_refused():
    with pytest.raises(DefinitionError, match=r"'pkg://math:pi' names 3.14.*is not callable"):
        ew.make("pkg://math:pi")


# Plug-ins


def test_a_package_announces_environments_backends_and_schemes(install):
    install(
        "fake_good",
        "from envweave.examples import CounterEnv\n"
        "from envweave.registry import EnvSpec\n"
        "from envweave.backends.inproc import *\n"
        "def resolve(rest, registry):\n"
        "    return EnvSpec('good://' + rest, CounterEnv, kwargs={'done_at': int(rest)})\n",
        "[envweave.envs]\nfake-v0 = fake_good:CounterEnv\n"
        "[envweave.backends]\nfake = fake_good\n"
        "[envweave.resolvers]\ngood = fake_good:resolve\n",
    )

    with ew.make("fake-v0", backend="fake") as env, ew.make("good://1") as other:
        env.reset()
        other.reset()

        assert (env.id, other.id) == ("fake-v0", "good://1")
        assert other.step({"delta": 1}).done
    assert "fake-v0" in [spec.id for spec in ew.list_envs()]


def test_finding_and_listing_import_nothing(install):
    install("fake_lazy", "raise RuntimeError", "[envweave.envs]\nlazy-v0 = fake_lazy:Env\n")

    found = ew.spec("lazy-v0")

    assert found == EnvSpec("lazy-v0", "fake_lazy:Env")
    assert found in ew.list_envs()
    assert "fake_lazy" not in sys.modules


def test_a_broken_environment_is_named_with_its_package_and_the_cause(install):
    install("fake_broken", "1 / 0", "[envweave.envs]\nbroken-v0 = fake_broken:Env\n")

    with pytest.raises(
        PluginError,
        match=r"^The plug-in 'broken-v0' \(envweave.envs\) of fake_broken is broken. 'fake_broken' "
        r"cannot be imported: ZeroDivisionError: division by zero \(fake_broken.py:1\)$",
    ) as caught:
        ew.make("broken-v0")

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_broken_environment_does_not_break_the_others(install, capsys):
    install("fake_broken", "1 / 0", "[envweave.envs]\nbroken-v0 = fake_broken:Env\n")

    code = main(["list", "--json"])

    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["environments"]}
    assert code == 0
    assert "of fake_broken is broken" in listed["broken-v0"]["error"]
    assert listed["counter-v0"]["error"] is None


def test_a_package_that_announces_what_it_does_not_have_is_named(install):
    install("fake_renamed", "class Env: ...", "[envweave.envs]\nold-v0 = fake_renamed:Evn\n")

    with pytest.raises(PluginError, match=r"'old-v0' .*of fake_renamed is broken.*mean 'Env'\?"):
        ew.make("old-v0")


@pytest.mark.parametrize(
    ("group", "ask", "message"),
    [
        (
            "envweave.backends",
            lambda: ew.make("counter-v0", backend="fake"),
            r"'fake' \(envweave.backends\) of fake_broken is broken",
        ),
        (
            "envweave.resolvers",
            lambda: ew.make("fake://x"),
            r"'fake' \(envweave.resolvers\) of fake_broken is broken",
        ),
    ],
)
def test_a_broken_backend_or_scheme_is_named_with_its_package(install, group, ask, message):
    install("fake_broken", "import fake_missing", f"[{group}]\nfake = fake_broken:thing\n")

    with pytest.raises(PluginError, match=message + r".*No module named 'fake_missing'"):
        ask()


def test_a_name_that_two_packages_announce_belongs_to_the_first_on_the_path(install):
    one, two = (f"[envweave.envs]\ntwice-v0 = {name}:Env\n" for name in ("fake_one", "fake_two"))
    install("fake_two", "", two, folder="later")
    install("fake_one", "", one, folder="earlier")

    assert ew.spec("twice-v0").factory == "fake_one:Env"


def test_a_path_that_was_registered_here_is_not_blamed_on_a_package(install):
    install("fake_broken", "1 / 0", "[envweave.envs]\nbroken-v0 = fake_broken:Env\n")
    registry = ew.Registry()
    ew.register("mine-v0", "fake_broken:Env", registry=registry)

    with pytest.raises(PluginError, match=r"^'fake_broken' cannot be imported: ZeroDivisionError"):
        ew.make("mine-v0", registry=registry)


def test_a_missing_entry_point_is_not_a_plug_in():
    with pytest.raises(LookupError):
        load_plugin("envweave.envs", "zzz")
    with pytest.raises(BackendNotFoundError):
        ew.make("counter-v0", backend="zzz")
    with pytest.raises(EnvIdError):
        ew.make("zzz://x")
