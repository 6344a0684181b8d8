"""Valid and invalid options of a container."""

from __future__ import annotations

from typing import Any

import pytest

from envweave import LocalDockerProvider
from envweave.errors import OptionError
from envweave.providers.docker.options import DockerOptions, format_size, parse_size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memroy": "1g"}, r"no option 'memroy'\. Did you mean 'memory'\?"),
        ({"memory": "lots"}, r"memory must be a size .*, got 'lots'"),
        ({"memory": True}, r"memory must be a size .*, got True"),
        ({"memory": -1}, r"memory must be a size .*, got -1"),
        ({"memory": "1m"}, r"memory must be at least 16 MiB"),
        ({"tmp_size": 1}, r"tmp_size must be at least 4 KiB, got 1"),
        ({"cpus": 0}, r"cpus must be a number >= .*, got 0"),
        ({"cpus": "2"}, r"cpus must be a number >= .*, got '2'"),
        ({"cpus": float("nan")}, r"cpus must be a number >= .*, got nan"),
        ({"pids": 0}, r"pids must be an integer .*, got 0"),
        ({"pids": 1.5}, r"pids must be an integer .*, got 1.5"),
        ({"container_port": 70000}, r"container_port must be an integer .*, got 70000"),
        ({"read_only": 1}, r"read_only must be True or False, got 1"),
        ({"network": "host"}, r"this machine's own network"),
        ({"network": ""}, r"network must be a non-empty string, got ''"),
        ({"user": 1000}, r"user must be a non-empty string, got 1000"),
        ({"command": "python"}, r"command must be a list of strings, got 'python'"),
        ({"capabilities": "CHOWN"}, r"capabilities must be a list of strings, got 'CHOWN'"),
        ({"volumes": {"here": "/data"}}, r"volumes must map absolute paths"),
        ({"volumes": {"/here": "data"}}, r"volumes must map absolute paths"),
        ({"volumes": {"/a:/b": "/data"}}, r"volumes must map absolute paths"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LocalDockerProvider(**options)


@pytest.mark.parametrize(
    ("env_vars", "message"),
    [
        ({"A=B": "x"}, "is not a valid name"),
        ({"": "x"}, "is not a valid name"),
        ({"A": 1}, r"A must be a string without NUL, got int"),
        ({"A": "x\0y"}, r"must be a string without NUL"),
    ],
)
def test_invalid_variables_are_refused(env_vars: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LocalDockerProvider().start_container("echo-env:latest", env_vars=env_vars)


@pytest.mark.parametrize("image", ["", " ", None])
def test_an_image_without_a_name_is_refused(image: Any) -> None:
    with pytest.raises(OptionError, match="is not the name of an image"):
        LocalDockerProvider().start_container(image)


def test_an_option_for_one_container_is_checked_too() -> None:
    with pytest.raises(OptionError, match="Did you mean 'memory'"):
        LocalDockerProvider().start_container("echo-env:latest", memry="1g")


@pytest.mark.parametrize(
    ("value", "size"),
    [("512m", 512 * 2**20), ("1.5g", 3 * 2**29), ("64 MiB", 2**26), ("100", 100), (7, 7)],
)
def test_sizes_are_bytes_or_strings(value: Any, size: int) -> None:
    assert parse_size("memory", value) == size


def test_sizes_are_shown_in_readable_units() -> None:
    assert [format_size(size) for size in (12, 2**12, 3 * 2**29)] == [
        "12 bytes",
        "4 KiB",
        "1.5 GiB",
    ]


def test_a_volume_is_read_only_by_default() -> None:
    options = DockerOptions(volumes={"/a": "/b", "/c": "/d:rw"})

    assert options.host_config()["Binds"] == ["/a:/b:ro", "/c:/d:rw"]
