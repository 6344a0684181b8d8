"""`prime://owner/name`: what the Hub is asked, what it may do, and what is said where it fails."""

from __future__ import annotations

import importlib.metadata
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fake_services import PrimeHub, prime_hub
from installations import install, with_envweave

import envweave as ew
from envweave.errors import (
    AccessError,
    ConnectionLostError,
    EnvIdError,
    EnvNotFoundError,
    InstallError,
    MissingExtraError,
    OptionError,
    ServerError,
)
from envweave.examples import CounterEnv
from envweave.providers import SubprocessProvider

MODULE = {"loop_maze.py": "def load_environment(): ...\n"}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PRIME_API_KEY", "PRIME_API_BASE_URL", "PRIME_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    with prime_hub() as served:
        monkeypatch.setenv("PRIME_API_BASE_URL", served.api_url)
        served.publish("maze-lab/loop-maze", "0.1.0", MODULE)
        served.publish("maze-lab/loop-maze", "0.2.0", MODULE)
        yield served


def assert_nothing_installed(hub: PrimeHub) -> None:
    assert hub.downloads == []
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("loop-maze")


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("env_id", ["prime://maze-lab/loop-maze", "maze-lab/loop-maze"])
def test_the_latest_version_is_resolved_and_recorded(hub, env_id, bare):
    hub.bare = bare

    spec = ew.spec(env_id)

    assert (spec.id, spec.package.version) == ("prime://maze-lab/loop-maze@0.2.0", "0.2.0")


def test_a_pinned_id_needs_no_network(hub):
    spec = ew.spec("prime://maze-lab/loop-maze@0.1.0")

    assert spec.id == "prime://maze-lab/loop-maze@0.1.0"
    assert hub.requests == []


def test_a_registered_bare_name_takes_precedence_over_the_hub(hub):
    registry = ew.Registry()
    ew.register("maze-lab/loop-maze", CounterEnv, registry=registry)

    assert ew.spec("maze-lab/loop-maze", registry=registry).factory is CounterEnv
    assert hub.requests == []


def test_nothing_is_installed_without_permission(hub):
    with pytest.raises(InstallError) as refused:
        ew.make("prime://maze-lab/loop-maze@0.1.0")

    release = hub.releases["maze-lab", "loop-maze"]["0.1.0"]
    wheel = f"{hub.files_url}/files/maze-lab/loop-maze/0.1.0/{release.filename}"
    reason, command, way_out = str(refused.value).splitlines()
    assert "is not installed. Nothing is installed without permission." in reason
    assert sys.executable in command
    assert shlex.split(command)[-1] == f"loop-maze @ {wheel}#sha256={release.sha256}"
    assert "install='always'" in way_out
    assert_nothing_installed(hub)


def test_dependencies_that_are_urls_are_part_of_the_command(hub):
    other = "other @ git+https://packages.example/other"
    hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, url_dependencies=[other])

    with pytest.raises(InstallError) as refused:
        ew.make("prime://maze-lab/loop-maze@0.4.0")

    assert shlex.split(str(refused.value).splitlines()[1])[-1] == other


def test_another_installed_version_is_not_used_instead(hub, tmp_path, monkeypatch):
    install(tmp_path, "loop-maze", MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(InstallError, match=r"@0\.2\.0' is installed as loop-maze 1\.0\."):
        ew.make("prime://maze-lab/loop-maze")

    asked = len(hub.requests)
    with pytest.raises(MissingExtraError, match="verifiers"):  # what it is made with comes next
        ew.make("prime://maze-lab/loop-maze@1.0.0")
    assert len(hub.requests) == asked


def test_asking_is_refused_where_there_is_no_terminal(hub, monkeypatch):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)

        with pytest.raises(InstallError, match=r"needs a terminal to ask on.*\n.*install"):
            ew.make("prime://maze-lab/loop-maze", install="ask")

    assert_nothing_installed(hub)


@pytest.mark.slow  # starts a program
@pytest.mark.parametrize(
    ("answer", "outcome", "downloads"),
    [(b"n\n", "It was not installed, as you chose", 0), (b"y\n", "the SHA-256 of", 1)],
)
def test_the_answer_on_a_terminal_decides(hub, answer, outcome, downloads):
    hub.releases["maze-lab", "loop-maze"]["0.2.0"].sha256 = "0" * 64  # never to be installed
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    program = "import envweave as ew; ew.make('prime://maze-lab/loop-maze', install='ask')"

    done = subprocess.run(
        [sys.executable, "-c", program], stdin=theirs, stderr=theirs, env=with_envweave()
    )
    screen = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)

    assert done.returncode == 1
    assert "? [y/N]" in screen
    assert outcome in screen
    assert len(hub.downloads) == downloads


def test_a_server_of_this_python_needs_the_package_here(hub):
    hub.releases["maze-lab", "loop-maze"]["0.2.0"].sha256 = "0" * 64  # never to be installed
    options = {"provider": SubprocessProvider(), "install": "always"}

    with pytest.raises(InstallError, match="the SHA-256 of"):
        ew.make("prime://maze-lab/loop-maze", **options)


def test_another_permission_is_refused(hub):
    with pytest.raises(OptionError, match=r"got 'allways'.*mean 'always'"):
        ew.make("prime://maze-lab/loop-maze", install="allways")


@pytest.mark.parametrize(
    "env_id", ["prime://maze-lab/no-maze", "prime://maze-lab/no-maze@1.0", "maze-lab/no-maze@1.0"]
)
def test_an_environment_missing_on_the_hub_is_reported(hub, env_id):
    with pytest.raises(
        EnvNotFoundError, match=r"Prime Hub .*no environment maze-lab/no-maze.*list"
    ):
        ew.make(env_id)


def test_an_unknown_bare_id_is_reported_with_both_sources(hub):
    with pytest.raises(EnvNotFoundError, match=r"No environment is registered as.*Prime Hub"):
        ew.make("maze-lab/no-maze")


def test_a_missing_version_is_reported_with_the_available_ones(hub):
    with pytest.raises(EnvNotFoundError, match=r"no version '0.3.0'.*It has: 0.2.0, 0.1.0\."):
        ew.make("prime://maze-lab/loop-maze@0.3.0", install="always")

    assert_nothing_installed(hub)


@pytest.mark.parametrize(
    "rest", ["loop-maze", "a/b/c", "maze-lab/", "maze-lab/loop-maze@", "../b", "a b/c"]
)
def test_an_invalid_hub_name_is_refused(hub, rest):
    with pytest.raises(EnvIdError, match="prime://owner/name@version"):
        ew.spec(f"prime://{rest}")

    assert hub.requests == []


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (
            401,
            AccessError,
            r"401 \(no luck today\).*requires an API key: set PRIME_API_KEY, or run",
        ),
        (402, AccessError, "402.*billing"),
        (422, EnvIdError, "422.*prime://owner/name@version"),
        (500, ServerError, "500.*Try again later"),
        (503, ServerError, "503.*Try again later"),
    ],
)
def test_a_refusal_of_the_hub_is_reported_with_the_remedy(hub, status, error, message):
    hub.status = status

    with pytest.raises(error, match=message):
        ew.spec("prime://maze-lab/loop-maze")


def test_without_a_network_the_error_lists_what_works_offline(monkeypatch):
    monkeypatch.setenv("PRIME_API_BASE_URL", "http://127.0.0.1:1")

    with pytest.raises(ConnectionLostError, match=r"127.0.0.1:1 does not answer.*@version"):
        ew.spec("prime://maze-lab/loop-maze")


def test_a_rejected_key_and_a_missing_key_are_reported_differently(hub, monkeypatch):
    hub.key = "right"
    monkeypatch.setenv("PRIME_API_KEY", "wrong")

    with pytest.raises(AccessError, match="Your API key is not accepted"):
        ew.spec("prime://maze-lab/loop-maze")


@pytest.mark.parametrize("key", ["sec\nret", "sécret"])
def test_a_key_that_cannot_be_sent_is_not_shown(hub, monkeypatch, key):
    monkeypatch.setenv("PRIME_API_KEY", key)

    with pytest.raises(AccessError, match="characters that a key cannot have") as refused:
        ew.spec("prime://maze-lab/loop-maze")

    assert "cret" not in str(refused.value)


def test_white_space_around_a_key_is_ignored(hub, monkeypatch):
    hub.key = "right"
    monkeypatch.setenv("PRIME_API_KEY", "right\n")

    assert ew.spec("prime://maze-lab/loop-maze").package.version == "0.2.0"


def test_address_and_key_come_from_the_file_that_prime_login_writes(hub, monkeypatch, tmp_path):
    hub.key = "right"
    monkeypatch.delenv("PRIME_API_BASE_URL")
    (tmp_path / ".prime").mkdir()
    written = f'{{"base_url": "{hub.api_url}/api/v1", "api_key": "right"}}'
    (tmp_path / ".prime/config.json").write_text(written)

    assert ew.spec("prime://maze-lab/loop-maze").package.version == "0.2.0"


def test_the_key_is_shown_to_the_api_alone(hub, monkeypatch):
    hub.key = "right"
    monkeypatch.setenv("PRIME_API_KEY", "right")
    hub.releases["maze-lab", "loop-maze"]["0.2.0"].sha256 = "0" * 64

    with pytest.raises(InstallError):
        ew.make("prime://maze-lab/loop-maze", install="always")

    assert {(one.host, one.authorization) for one in hub.requests} == {
        ("api", "Bearer right"),
        ("files", None),
    }
    assert len(hub.downloads) == 1


def test_the_key_does_not_follow_a_redirect_to_another_host(hub, monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", "right")
    hub.redirect = hub.files_url

    with pytest.raises(EnvNotFoundError):
        ew.spec("prime://maze-lab/loop-maze")

    assert [one.authorization for one in hub.requests if one.host == "files"] == [None]


def test_a_redirect_to_an_address_that_is_not_safe_is_not_followed(hub):
    hub.redirect = "http://packages.example"

    with pytest.raises(InstallError, match=r"'http://packages.example/.*is refused"):
        ew.spec("prime://maze-lab/loop-maze")


@pytest.mark.parametrize("details", [{}, {"simple_index_url": None}])
def test_a_wheel_with_another_checksum_is_not_installed(hub, details):
    release = hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, **details)
    release.content += b"and more"

    with pytest.raises(InstallError, match=rf"not installed: the SHA-256.*{release.sha256}"):
        ew.make("prime://maze-lab/loop-maze@0.4.0", install="always")

    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("loop-maze")


def test_a_wheel_without_a_checksum_is_not_installed(hub):
    release = hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, simple_index_url=None)
    release.sha256 = ""

    with pytest.raises(InstallError, match=r"no checksum.*prime env install maze-lab/loop-maze@0"):
        ew.make("prime://maze-lab/loop-maze@0.4.0", install="always")

    assert_nothing_installed(hub)


@pytest.mark.parametrize(
    "details",
    [
        {"simple_index_url": "http://packages.example/simple"},
        {"install_index_url": "file:///tmp/simple"},
        {"simple_index_url": 5},
        {"simple_index_url": None, "wheel_url": "https://\x1b[2Jpackages.example/other.whl"},
        {"simple_index_url": None, "wheel_url": "ftp://127.0.0.1/loop_maze-0.4.0-py3-none-any.whl"},
        {"simple_index_url": None, "wheel_url": "file:///tmp/loop_maze-0.4.0-py3-none-any.whl"},
        {"url_dependencies": ["other @ git+ssh://git@127.0.0.1/other"]},
        {"url_dependencies": ["http://packages.example/other-1.0-py3-none-any.whl"]},
        {"url_dependencies": ["--index-url=http://packages.example/simple"]},
        {"url_dependencies": [5]},
    ],
)
def test_other_addresses_than_https_are_refused(hub, details):
    hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, **details)

    with pytest.raises(InstallError, match=r"is refused: .*https"):
        ew.make("prime://maze-lab/loop-maze@0.4.0", install="always")

    assert_nothing_installed(hub)


def test_an_api_without_tls_is_not_shown_the_key(monkeypatch):
    monkeypatch.setenv("PRIME_API_BASE_URL", "http://packages.example")

    with pytest.raises(InstallError, match=r"https.*PRIME_API_BASE_URL"):
        ew.spec("prime://maze-lab/loop-maze")


@pytest.mark.parametrize("version", [None, 5, " 0.4.0\n", "../0.4.0"])
def test_a_hub_without_a_latest_version_is_reported(hub, version):
    hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, semantic_version=version)

    with pytest.raises(ServerError, match="Name one: prime://maze-lab/loop-maze@VERSION"):
        ew.spec("prime://maze-lab/loop-maze")


def test_the_name_of_a_wheel_cannot_lead_out_of_the_folder_for_it(hub):
    release = hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, simple_index_url=None)
    folder = f"{hub.files_url}/files/maze-lab/loop-maze/0.4.0"
    named = f"{folder}/loop_maze-0.4.0-1%2F..%2F..%2Fx-py3-none-any.whl"
    release.details["wheel_url"] = named

    with pytest.raises(InstallError, match=r"is 'x-py3-none-any.whl', which is not loop-maze"):
        ew.make("prime://maze-lab/loop-maze@0.4.0", install="always")

    assert_nothing_installed(hub)


def test_a_wheel_of_another_package_is_refused(hub):
    hub.publish("maze-lab/other", "9.9", {"other.py": ""})
    other = f"{hub.files_url}/files/maze-lab/other/9.9/other-9.9-py3-none-any.whl"
    hub.publish("maze-lab/loop-maze", "0.4.0", MODULE, simple_index_url=None, wheel_url=other)

    with pytest.raises(InstallError, match=r"'other-9.9-.*' *, which is not loop-maze 0.4.0"):
        ew.make("prime://maze-lab/loop-maze@0.4.0", install="always")

    assert_nothing_installed(hub)


def test_a_private_package_is_installed_with_the_hubs_own_command(hub):
    hub.publish(
        "maze-lab/loop-maze",
        "0.4.0",
        MODULE,
        visibility="PRIVATE",
        simple_index_url=None,
        wheel_url=None,
        package_url=f"{hub.files_url}/source.tar.gz",
    )

    with pytest.raises(
        InstallError, match=r"It is private.*prime env install maze-lab/loop-maze@0.4.0"
    ):
        ew.make("prime://maze-lab/loop-maze@0.4.0", install="always")


def test_a_module_that_is_imported_in_another_version_is_not_exchanged(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "loop_maze", sys)

    with pytest.raises(InstallError, match=r"imported already. Start a new Python"):
        ew.make("prime://maze-lab/loop-maze", install="always")

    assert_nothing_installed(hub)


def test_another_python_is_installed_into_without_the_packages_of_this_one(
    hub, tmp_path, monkeypatch
):
    """pip would leave out whatever it finds on `PYTHONPATH`."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -P ] && exec {sys.executable} "$@"\n'
        'echo "path: <$PYTHONPATH>"; exit 1\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without uv
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(InstallError, match=r"-m pip install .*\npath: <>"):
        ew.make("prime://maze-lab/loop-maze", venv=tmp_path / "venv", install="always")
