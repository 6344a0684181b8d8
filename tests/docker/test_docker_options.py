"""What a container can be given, and what it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from envweave.errors import OptionError
from envweave.providers.docker.options import DockerOptions, shown, size_of
from envweave.providers.docker.provider import LocalDockerProvider


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"memroy": "1g"}, r"no option 'memroy'\. Did you mean 'memory'\?"),
        ({"memory": "lots"}, r"memory='lots' is no size"),
        ({"memory": True}, r"memory=True is no size"),
        ({"memory": -1}, r"memory=-1 is no size"),
        ({"memory": "1m"}, r"less than 16 MiB"),
        ({"tmp_size": 1}, r"tmp_size=1 bytes is less than 4 KiB"),
        ({"cpus": 0}, r"cpus=0 is no number"),
        ({"cpus": "2"}, r"cpus='2' is no number"),
        ({"cpus": float("nan")}, r"cpus=nan is no number"),
        ({"pids": 0}, r"pids=0 is no whole number"),
        ({"pids": 1.5}, r"pids=1.5 is no whole number"),
        ({"container_port": 70000}, r"container_port=70000 is no whole number"),
        ({"read_only": 1}, r"read_only=1 is neither True nor False"),
        ({"network": "host"}, r"this machine's own network"),
        ({"network": ""}, r"network='' is no text"),
        ({"user": 1000}, r"user=1000 is no text"),
        ({"command": "python"}, r"command='python' is no list of texts"),
        ({"capabilities": "CHOWN"}, r"capabilities='CHOWN' is no list"),
        ({"volumes": {"here": "/data"}}, r"are no two absolute paths"),
        ({"volumes": {"/here": "data"}}, r"are no two absolute paths"),
        ({"volumes": {"/a:/b": "/data"}}, r"are no two absolute paths"),
    ],
)
def test_what_no_container_can_be_given_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        LocalDockerProvider(**options)


@pytest.mark.parametrize(
    ("env_vars", "told"),
    [
        ({"A=B": "x"}, "is no name of an environment variable"),
        ({"": "x"}, "is no name of an environment variable"),
        ({"A": 1}, r"A has a int, and must be a text"),
        ({"A": "x\0y"}, r"must be a text"),
    ],
)
def test_variables_that_are_none_are_refused(env_vars: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        LocalDockerProvider().start_container("echo-env:latest", env_vars=env_vars)


@pytest.mark.parametrize("image", ["", " ", None])
def test_an_image_without_a_name_is_refused(image: Any) -> None:
    with pytest.raises(OptionError, match="is no image's name"):
        LocalDockerProvider().start_container(image)


def test_an_option_for_one_container_is_checked_too() -> None:
    with pytest.raises(OptionError, match="Did you mean 'memory'"):
        LocalDockerProvider().start_container("echo-env:latest", memry="1g")


@pytest.mark.parametrize(
    ("said", "size"),
    [("512m", 512 * 2**20), ("1.5g", 3 * 2**29), ("64 MiB", 2**26), ("100", 100), (7, 7)],
)
def test_sizes_are_bytes_or_texts(said: Any, size: int) -> None:
    assert size_of("memory", said) == size


def test_sizes_are_shown_for_people() -> None:
    assert [shown(size) for size in (12, 2**12, 3 * 2**29)] == ["12 bytes", "4 KiB", "1.5 GiB"]


def test_a_volume_is_read_only_unless_it_says_more() -> None:
    options = DockerOptions(volumes={"/a": "/b", "/c": "/d:rw"})

    assert options.host_config()["Binds"] == ["/a:/b:ro", "/c:/d:rw"]
