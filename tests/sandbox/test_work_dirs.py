"""Work folders on the host's disk."""

from __future__ import annotations

import errno
import os

import pytest

from envweave.sandbox.host import work_dirs
from envweave.sandbox.host.work_dirs import WorkFolder, remove_tree
from envweave.sandbox.processes.resources import SessionResources


@pytest.fixture
def folder(tmp_path):
    return WorkFolder(tmp_path, None, disk_bytes=1 << 20, files=50)


def test_a_folder_of_any_shape_is_removed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    tree = tmp_path / "tree"
    for name in ("a/b/c", "a/d", "e"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text("x")
    (tree / "a" / "out").symlink_to(outside)
    (tree / "dangling").symlink_to("/no/such/place")
    os.mkfifo(tree / "pipe")
    (tree / "a" / "d").chmod(0)

    remove_tree(tree)
    remove_tree(tree)

    assert not tree.exists()
    assert (outside / "kept").read_text() == "kept"


def test_folders_deeper_than_a_path_can_name_are_removed(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(1200):  # deeper than Python recurses
        os.mkdir("x" * 20, dir_fd=here)
        inner = os.open("x" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    remove_tree(tree)

    assert not tree.exists()


def test_a_user_id_is_released_after_the_folder_of_its_session_is_gone(folder):
    class Taking:
        def release(self, _cgroup, user):
            self.taken = (user, folder.path.exists())

    supplies = Taking()
    SessionResources(7, folder, None, supplies, user=7).free()

    assert supplies.taken == (7, False)


def test_the_content_of_a_folder_is_counted(folder):
    assert not folder.is_over()

    (folder.path / "small").write_bytes(b"x" * 4096)
    assert not folder.is_over()

    (folder.path / "tmp" / "large").write_bytes(b"x" * (2 << 20))
    assert folder.is_over()


def test_many_files_are_over_the_limit(folder):
    for number in range(60):
        (folder.path / str(number)).touch()

    assert folder.is_over()


def test_folders_too_deep_to_be_counted_are_over_the_limit(tmp_path):
    folder = WorkFolder(tmp_path, None, disk_bytes=1 << 30, files=1 << 20)
    here = os.open(folder.path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("x" * 200, dir_fd=here)
        inner = os.open("x" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    assert folder.is_over()
    folder.remove()
    assert not folder.path.exists()


def test_moving_a_folder_during_its_removal_affects_no_other_folder(tmp_path, monkeypatch):
    """A killed process may still finish its current system call."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "victim").mkdir()
    enter, look = work_dirs._enter, work_dirs._remove_files

    def enter_and_move(here, name):
        inner = enter(here, name)
        if name == "c":
            (tree / "a" / "b" / "c").rename(tree / "c")
        return inner

    monkeypatch.setattr(work_dirs, "_enter", enter_and_move)
    monkeypatch.setattr(
        work_dirs,
        "_remove_files",
        lambda here: sorted(look(here), key=lambda name: name != "victim"),
    )
    remove_tree(tree)

    assert (tmp_path / "victim" / "kept").read_text() == "kept"


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.mkdir(0o755)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(victim)
    here = os.open(tmp_path / "tree", os.O_RDONLY)
    usual = os.open

    def closed(path, flags, *, dir_fd=None):
        if path == "link" and not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, "closed")
        return usual(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(work_dirs.os, "open", closed)
    with pytest.raises(NotADirectoryError):
        work_dirs._enter(here, "link")
    os.close(here)

    assert victim.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_an_unreadable_folder_counts_as_over_the_limit(folder):
    (folder.path / "closed").mkdir(0o300)

    assert folder.is_over()
