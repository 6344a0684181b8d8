"""Advice for walls that cannot be set up."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from envweave.sandbox.doctor import MachineFacts, advise, machine_facts

UBUNTU = MachineFacts(
    apparmor_restricts=1, max_user_namespaces=60_000, python="/opt/py/bin/python3.12"
)
OLD_DEBIAN = MachineFacts(userns_clone=0, max_user_namespaces=60_000, kernel=(5, 10))
RED_HAT = MachineFacts(max_user_namespaces=0)
DOCKER = MachineFacts(container="docker", is_filtered=True)
DOCKER_ROOT = MachineFacts(container="docker", is_filtered=True, is_root=True)
PODMAN = MachineFacts(container="podman", is_filtered=True)
POD = MachineFacts(container="kubernetes", is_filtered=True)
SERVICE = MachineFacts(is_filtered=True)
PLAIN = MachineFacts()
NO_LANDLOCK = MachineFacts(modules=("lockdown", "yama", "apparmor"))


@pytest.mark.parametrize(
    ("wall", "number", "facts", "expected"),
    [
        ("namespaces", "EPERM", OLD_DEBIAN, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("namespaces", "EPERM", UBUNTU, "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("namespaces", "EPERM", UBUNTU, "profile envweave /opt/py/bin/python3.12"),
        ("root folder", "EACCES", UBUNTU, "apparmor_parser -r /etc/apparmor.d/envweave"),
        ("namespaces", "ENOSPC", RED_HAT, "sysctl -w user.max_user_namespaces=15000"),
        ("user namespace", "ENOSPC", UBUNTU, "All 60000 user namespaces of this user"),
        ("user namespace", "EUSERS", UBUNTU, "nested 32 levels deep"),
        ("namespaces", "EINVAL", PLAIN, "CONFIG_USER_NS=y"),
        ("namespaces", "EPERM", DOCKER, "--security-opt seccomp=unconfined"),
        ("root folder", "EACCES", DOCKER, "--security-opt apparmor=unconfined"),
        ("namespaces", "EPERM", DOCKER_ROOT, "--cap-add SYS_ADMIN"),
        ("namespaces", "EPERM", PODMAN, "podman run --security-opt seccomp=unconfined"),
        ("namespaces", "EPERM", POD, "seccompProfile: {type: Unconfined}"),
        ("namespaces", "EPERM", POD, "hostUsers: false"),
        ("namespaces", "EPERM", SERVICE, "RestrictNamespaces="),
        ("namespaces", "EPERM", PLAIN, "or this process is in a chroot"),
        ("root folder", "ENOSYS", MachineFacts(kernel=(5, 4)), "needs Linux 5.12 or newer"),
        ("root folder", "EINVAL", PLAIN, "initial file system in memory"),
        (
            "landlock",
            "ENOSYS",
            MachineFacts(kernel=(5, 10)),
            "needs Linux 5.13 or newer, and this is 5.10",
        ),
        ("landlock", "ENOSYS", PLAIN, "CONFIG_SECURITY_LANDLOCK=y"),
        ("landlock", "EOPNOTSUPP", NO_LANDLOCK, "lsm=landlock,lockdown,yama,apparmor"),
        ("landlock", "EPERM", DOCKER, "upgrade to Docker 20.10.24"),
        ("seccomp gate", "EBUSY", PLAIN, "there can be only one"),
        ("seccomp", "EINVAL", PLAIN, "CONFIG_SECCOMP_FILTER=y"),
        ("seccomp", "ENOSYS", MachineFacts(machine="riscv64"), "this is riscv64"),
        ("user", "EPERM", PLAIN, "CAP_SETUID and CAP_SETGID"),
        ("descriptors", "EMFILE", PLAIN, "ulimit -n"),
        ("limits", "EPERM", PLAIN, "The kernel returned EPERM"),
        ("platform", "", MachineFacts(system="darwin"), "limactl start"),
        ("platform", "", MachineFacts(system="darwin"), "docker run"),
        ("platform", "", MachineFacts(system="darwin"), "executor='docker'"),
        ("platform", "", MachineFacts(system="win32"), "wsl --install"),
    ],
)
def test_a_failed_wall_comes_with_advice(
    wall: str, number: str, facts: MachineFacts, expected: str
) -> None:
    advice = advise(wall, getattr(errno, number) if number else 0, facts)

    assert any(expected in one for one in advice), advice


@pytest.mark.parametrize(
    ("wall", "number", "facts", "unexpected"),
    [
        ("namespaces", errno.EPERM, PLAIN, "docker"),
        ("namespaces", errno.EPERM, DOCKER, "--cap-add"),
        ("namespaces", errno.EPERM, MachineFacts(container="docker", is_root=True), "seccomp"),
        ("namespaces", errno.EPERM, UBUNTU, "chroot"),
        ("namespaces", errno.EPERM, MachineFacts(userns_clone=1), "unprivileged_userns_clone"),
        ("namespaces", errno.EPERM, MachineFacts(userns_clone=0, is_admin=True), "userns_clone"),
        ("namespaces", errno.ENOSPC, UBUNTU, "turned off"),
        ("landlock", errno.ENOSYS, MachineFacts(kernel=(5, 10)), "CONFIG_SECURITY_LANDLOCK"),
        ("landlock", errno.EOPNOTSUPP, NO_LANDLOCK, "upgrade"),
    ],
)
def test_advice_that_does_not_apply_is_omitted(
    wall: str, number: int, facts: MachineFacts, unexpected: str
) -> None:
    advice = advise(wall, number, facts)

    assert advice
    assert not any(unexpected in one for one in advice)


def test_a_failure_outside_the_kernel_gets_no_kernel_advice() -> None:
    assert advise("preload", 0, PLAIN) == []


def test_the_facts_are_read_from_the_machine(tmp_path: Path) -> None:
    settings = {
        "proc/self/status": "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n",
        "proc/sys/kernel/unprivileged_userns_clone": "0\n",
        "proc/sys/user/max_user_namespaces": "96343\n",
        "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
        "sys/kernel/security/lsm": "lockdown,landlock\n",
        ".dockerenv": "",
    }
    for name, text in settings.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    found = machine_facts(tmp_path, {})

    assert (found.is_root, found.is_admin, found.is_filtered) == (True, False, True)
    assert (found.userns_clone, found.max_user_namespaces) == (0, 96_343)
    assert (found.apparmor_restricts, found.modules) == (1, ("lockdown", "landlock"))
    assert found.container == "docker"


def test_unreadable_facts_count_as_missing(tmp_path: Path) -> None:
    found = machine_facts(tmp_path, {})

    assert (found.is_root, found.is_admin, found.is_filtered) == (False, False, False)
    assert (found.userns_clone, found.modules, found.container) == (None, None, None)


@pytest.mark.parametrize(
    ("variables", "file", "expected"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "kubernetes"),
        ({}, "run/.containerenv", "podman"),
        ({"container": "lxc"}, "nothing", "other"),
    ],
)
def test_a_container_is_recognized_by_its_files_and_variables(
    tmp_path: Path, variables: dict[str, str], file: str, expected: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()

    assert machine_facts(tmp_path, variables).container == expected
