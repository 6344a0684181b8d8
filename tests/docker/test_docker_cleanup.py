"""Containers whose owners are gone are removed; all others are left alone."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from containers import ECHO, containers_of, exists

from envweave import LocalDockerProvider
from envweave.providers.cleanup import Owner, remove_leftovers

docker_test = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]


def with_docker(test):
    for mark in docker_test:
        test = mark(test)
    return test


HERE = Owner.here()
ENDED = dataclasses.replace(HERE, mark=f"{HERE.mark}0")  # started at another time


@pytest.fixture
def dead() -> Owner:
    """A process that has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", "from envweave.providers.cleanup import Owner; print(Owner.here())"],
        stdout=subprocess.PIPE,
    ) as process:
        output = process.stdout.read().decode()
    return eval(output, {"Owner": Owner})


def test_this_process_is_not_gone() -> None:
    assert not HERE.is_gone()


def test_a_process_that_has_ended_is_gone(dead: Owner) -> None:
    assert dead.is_gone()


def test_a_reused_pid_is_recognized() -> None:
    assert ENDED.is_gone()


@pytest.mark.parametrize(
    ("changes", "is_gone"),
    [
        ({"boot": "an-earlier-start"}, True),
        ({"boot": "an-earlier-start", "machine": "another"}, False),
        ({"boot": "an-earlier-start", "machine": ""}, False),
        ({"boot": ""}, False),
        ({"mark": ""}, False),
        ({"mark": "not-one-of-ours"}, False),
        # Processes in another namespace have numbers that mean nothing here.
        ({"mark": "envweave-1-2-3"}, False),
    ],
)
def test_an_owner_on_another_machine_is_unknown(changes: dict[str, str], is_gone: bool) -> None:
    assert dataclasses.replace(HERE, **changes).is_gone() is is_gone


def test_only_containers_of_owners_that_are_gone_are_removed() -> None:
    class Listed:
        def __init__(self) -> None:
            self.all: dict[str, Mapping[str, str]] = {
                "mine": HERE.labels(),
                "left": ENDED.labels(),
                "odd": {"envweave.owner": ""},
            }

        def labels(self, label: str) -> dict[str, Mapping[str, str]]:
            return dict(self.all)

        def remove(self, container: str) -> None:
            del self.all[container]

    containers = Listed()

    assert remove_leftovers(containers) == 1
    assert list(containers.all) == ["mine", "odd"]


STARTER = """
import sys, threading
from envweave.providers.docker.provider import LocalDockerProvider
from envweave.providers.cleanup import Owner
providers = []
for i in range(int(sys.argv[1])):
    providers.append(LocalDockerProvider(network=sys.argv[2], memory="128m"))
    url = providers[-1].start_container("echo-env:latest")
print(Owner.here().mark, url, flush=True)
{then}
"""


def starter(then: str, count: int = 1, network: str = "bridge") -> subprocess.Popen[str]:
    """Return a process that has started containers, and then does something."""
    code = STARTER.replace("{then}", then)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(count), network],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_one() -> None:
    provider = LocalDockerProvider()
    try:
        provider.start_container(ECHO)
    finally:
        provider.stop_container()


@with_docker
def test_eight_containers_of_a_killed_caller_are_removed_by_the_next_start() -> None:
    with starter("threading.Event().wait(120)", count=8) as process:
        mark = process.stdout.readline().split()[0]
        before = containers_of(mark)
        start_one()
        while_it_lived = containers_of(mark)

        process.kill()
        process.wait(20)
        start_one()

    assert (len(before), len(while_it_lived)) == (8, 8)
    assert containers_of(mark) == []


@with_docker
def test_the_folder_of_a_killed_callers_socket_is_removed_too() -> None:
    with starter("threading.Event().wait(120)", network="none") as process:
        mark, url = process.stdout.readline().split()
        folder = Path(url.removeprefix("unix://")).parents[1]
        was_there = folder.exists()
        process.kill()
        process.wait(20)

    provider = LocalDockerProvider(network="none")
    try:
        provider.start_container(ECHO)
    finally:
        provider.stop_container()

    assert was_there
    assert not folder.exists()
    assert containers_of(mark) == []


@with_docker
@pytest.mark.parametrize("then", ["", "raise RuntimeError", "del providers, url"])
def test_the_containers_of_a_program_are_removed_when_it_exits(then: str) -> None:
    with starter(then) as process:
        mark = process.stdout.readline().split()[0]
        process.communicate(timeout=60)

    assert containers_of(mark) == []


@with_docker
@pytest.mark.parametrize(
    "then", ["threading.Event().wait(120)", "providers[0].wait_for_ready(url, 120)"]
)
def test_ctrl_c_leaves_nothing_behind(then: str) -> None:
    with starter(then) as process:
        mark = process.stdout.readline().split()[0]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert containers_of(mark) == []


@with_docker
def test_a_forked_copy_leaves_the_container_to_its_parent() -> None:
    provider = LocalDockerProvider()
    provider.start_container(ECHO)
    try:
        child = os.fork()
        if child == 0:
            try:
                provider.stop_container()
            finally:
                os._exit(0)
        os.waitpid(child, 0)

        assert exists(provider.container)
    finally:
        provider.stop_container()
