"""Finding the cgroups of this process in the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from envweave.sandbox.host.cgroups import find_cgroups
from envweave.sandbox.host.session_cgroups import (
    CgroupPaths,
    CgroupsUnavailableError,
    find_cgroup_paths,
    find_v1,
    find_v2,
)


def machine(where: Path, cgroup: str, mounts: list[tuple[str, Path, str]]) -> Path:
    """A `/proc` with these memberships, and mounts of (root, folder, kind and options)."""
    (where / "self").mkdir(parents=True)
    (where / "self/cgroup").write_text(cgroup)
    lines = [
        f"{number} 1 0:{number} {root} {escaped(folder)} rw,nosuid shared:{number} - {kind}\n"
        for number, (root, folder, kind) in enumerate(mounts, start=30)
    ]
    (where / "self/mountinfo").write_text(
        "".join(["22 1 0:20 / / rw - ext4 /dev/vda rw\n", *lines])
    )
    return where


def escaped(folder: Path) -> str:
    return str(folder).replace(" ", r"\040")


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_machine_with_version_2_has_one_folder(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    own = made(top / "user.slice/run-1.scope")
    proc = machine(tmp_path / "proc", "0::/user.slice/run-1.scope\n", [("/", top, "cgroup2 c rw")])

    found = find_cgroup_paths(proc)

    assert found == CgroupPaths({}, own, top)


def test_a_machine_with_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    memory, cpu = made(tmp_path / "memory/job"), made(tmp_path / "cpu,cpuacct/other")
    proc = machine(
        tmp_path / "proc",
        "4:memory:/job\n2:cpu,cpuacct:/other\n1:name=systemd:/init\n0::/\n",
        [
            ("/", tmp_path / "memory", "cgroup cgroup rw,memory"),
            ("/", tmp_path / "cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct"),
        ],
    )

    found = find_cgroup_paths(proc)

    assert found == CgroupPaths({"memory": memory, "cpu": cpu, "cpuacct": cpu}, None, None)


def test_a_container_sees_its_own_part_of_the_tree(tmp_path: Path) -> None:
    own = made(tmp_path / "memory/inner")
    proc = machine(
        tmp_path / "proc",
        "4:memory:/docker/abc/inner\n",
        [("/docker/abc", tmp_path / "memory", "cgroup cgroup rw,memory")],
    )

    assert find_cgroup_paths(proc).v1 == {"memory": own}


def test_a_mount_of_another_part_of_the_tree_is_skipped(tmp_path: Path) -> None:
    made(tmp_path / "memory")
    proc = machine(
        tmp_path / "proc",
        "4:memory:/docker/abc\n0::/../elsewhere\n",
        [
            ("/docker/xyz", tmp_path / "memory", "cgroup cgroup rw,memory"),
            ("/", tmp_path / "memory", "cgroup2 c rw"),
        ],
    )

    found = find_cgroup_paths(proc)

    assert (found.v1, found.v2) == ({}, None)


def test_a_folder_with_a_space_in_its_name_is_found(tmp_path: Path) -> None:
    top = made(tmp_path / "my cgroups")
    proc = machine(tmp_path / "proc", "0::/\n", [("/", top, "cgroup2 c rw")])

    assert find_cgroup_paths(proc).v2 == top


def test_a_machine_without_cgroups_has_no_paths(tmp_path: Path) -> None:
    assert find_cgroup_paths(tmp_path) == CgroupPaths({}, None, None)


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    with pytest.raises(CgroupsUnavailableError, match="No cgroup tree has the pids controller"):
        find_v1(CgroupPaths({"memory": tmp_path}, None, None))


def test_version_2_without_its_controllers_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")

    with pytest.raises(CgroupsUnavailableError, match="cannot delegate the pids controller"):
        find_v2(CgroupPaths({}, tmp_path, tmp_path), "mark")


def test_a_plain_folder_is_not_taken_for_a_cgroup(tmp_path: Path) -> None:
    found = find_cgroups(CgroupPaths({"memory": tmp_path, "pids": tmp_path}, None, None))

    assert found.cgroups is None
    assert found.reason.startswith("Sessions have no cgroup. ")
    assert "could not be made" in found.reason
    assert list(tmp_path.iterdir()) == []
