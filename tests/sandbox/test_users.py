"""User ids for sessions: choosing and assigning them, and what they can read."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from envweave.errors import SandboxError
from envweave.sandbox.host.users import (
    FoundUsers,
    Span,
    UserRange,
    blocking_path,
    find_users,
    known_accounts,
    may_change_users,
)

ALL_IDS = "0 0 4294967295\n"
ROOT = 0x1FFFFFFFFFF
NSPAWN = Span(524_288, 1_879_048_192 - 524_288)


Find = Callable[[Path, Iterable[Span]], FoundUsers]


@pytest.fixture
def find() -> Iterator[Find]:
    """`find_users`, whose result is released at the end."""
    found = []

    def find_and_note(proc: Path, accounts: Iterable[Span]) -> FoundUsers:
        found.append(find_users(proc, accounts))
        return found[-1]

    yield find_and_note
    for one in found:
        if one.range is not None:
            one.range.close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if blocking_path(folder, 70_000) is not None:
            pytest.skip(f"{blocking_path(folder, 70_000)} is closed to other users")
        yield folder


def process(
    where: Path, users: str = ALL_IDS, groups: str | None = None, effective: int = ROOT
) -> Path:
    """A `/proc` in which this process has these maps and capabilities."""
    (where / "self").mkdir(parents=True)
    (where / "self/uid_map").write_text(users)
    (where / "self/gid_map").write_text(users if groups is None else groups)
    (where / "self/status").write_text(f"Name:\tpython\nCapEff:\t{effective:016x}\n")
    return where


def test_ids_are_far_from_accounts_containers_and_subordinate_ids(
    find: Find, tmp_path: Path
) -> None:
    found = find(process(tmp_path), []).range

    assert found is not None
    span = Span(found.first, found.count)
    assert found.count >= 4096
    assert not span.overlaps(Span(0, 65_536))
    assert not span.overlaps(NSPAWN)
    assert span.end <= 2_147_352_576


@pytest.mark.parametrize("users", ["0 100000 65536\n", "0 1000 1\n1 100000 65535\n"])
def test_a_container_assigns_only_ids_of_its_user_namespace(
    find: Find, tmp_path: Path, users: str
) -> None:
    found = find(process(tmp_path, users), []).range

    assert found is not None
    assert found.first > 1000
    assert found.first + found.count <= 60_000
    assert found.count >= 64


def test_ids_are_mapped_as_users_and_as_groups(find: Find, tmp_path: Path) -> None:
    found = find(process(tmp_path, ALL_IDS, "0 100000 65536\n"), []).range

    assert found is not None
    assert found.first + found.count <= 65_536


def test_ids_of_an_account_are_left_alone(find: Find, tmp_path: Path) -> None:
    free = Span(41_000, 2_000)
    taken = [Span(0, free.first), Span(free.end, 65_536 - free.end)]

    found = find(process(tmp_path, "0 100000 65536\n"), taken).range

    assert found is not None
    assert free.first <= found.first
    assert found.first + found.count <= free.end


def test_without_root_there_is_a_reason(find: Find, tmp_path: Path) -> None:
    found = find(process(tmp_path, effective=1 << 7), [])

    assert found.range is None
    assert "does not have both CAP_SETUID and CAP_SETGID" in found.reason


def test_a_namespace_with_one_id_has_none_to_assign(find: Find, tmp_path: Path) -> None:
    found = find(process(tmp_path, "0 1000 1\n"), [])

    assert found.range is None
    assert "of the 1 ids that its user namespace maps" in found.reason


def test_two_hosts_have_no_id_in_common(find: Find, tmp_path: Path) -> None:
    first = find(process(tmp_path), []).range

    second = find(tmp_path, []).range

    assert first is not None
    assert second is not None
    assert not Span(first.first, first.count).overlaps(Span(second.first, second.count))


def test_the_ids_of_a_host_that_closed_are_free_again(find: Find, tmp_path: Path) -> None:
    first = find(process(tmp_path), []).range
    assert first is not None
    first.close()
    first.close()

    second = find(tmp_path, []).range

    assert second is not None
    assert second.first == first.first


def test_every_id_is_assigned_once() -> None:
    ids = UserRange(Span(500, 3))

    lent = {ids.acquire(), ids.acquire(), ids.acquire()}

    assert lent == {500, 501, 502}
    with pytest.raises(SandboxError, match="all 3 are in use"):
        ids.acquire()


def test_a_released_id_is_reused_last() -> None:
    ids = UserRange(Span(500, 3))
    first, second = ids.acquire(), ids.acquire()
    ids.release(second)
    ids.release(first)

    lent = [ids.acquire(), ids.acquire(), ids.acquire()]

    assert lent == [502, second, first]


@pytest.mark.parametrize("user", [499, 500, 503])
def test_an_unused_id_cannot_be_released(user: int) -> None:
    ids = UserRange(Span(500, 3))
    ids.release(ids.acquire())

    with pytest.raises(ValueError, match=f"User id {user} is not in use"):
        ids.release(user)


def test_threads_never_share_an_id() -> None:
    ids = UserRange(Span(0, 8))
    held: set[int] = set()
    clashes = []

    def work() -> None:
        for _ in range(2000):
            user = ids.acquire()
            if user in held:
                clashes.append(user)
            held.add(user)
            held.remove(user)
            ids.release(user)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clashes == []


def test_accounts_are_read_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\n+::\n")
    (tmp_path / "group").write_text("staff:x:50:\n")
    (tmp_path / "subuid").write_text("ann:100000:65536\n")

    found = known_accounts(tmp_path)

    assert found == [Span(0, 1), Span(1000, 1), Span(50, 1), Span(100_000, 65_536)]


def test_a_world_readable_path_is_not_blocked(public: Path) -> None:
    (public / "file").write_text("x")

    assert blocking_path(public / "file", 70_000) is None
    assert blocking_path(public, 70_000) is None


def test_a_closed_parent_folder_is_returned(public: Path) -> None:
    closed = public / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o700)

    assert blocking_path(closed / "inner", 70_000) == closed


def test_a_blocking_folder_behind_a_link_is_returned(public: Path) -> None:
    (public / "closed").mkdir(mode=0o700)
    (public / "way").mkdir()
    (public / "way/link").symlink_to("../closed")
    (public / "loop").symlink_to("loop")

    assert blocking_path(public / "way/link/file", 70_000) == public / "closed"
    assert blocking_path(public / "loop", 70_000) == public / "loop"


def test_a_missing_path_blocks_itself(public: Path) -> None:

    assert blocking_path(public / "gone", 70_000) == public / "gone"


@pytest.mark.skipif(not may_change_users(), reason="needs CAP_SETUID, to become another user")
@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o744, 0o705, 0o700])
def test_the_kernel_agrees_about_blocking_paths(public: Path, mode: int) -> None:
    (public / "folder").mkdir()
    (public / "folder/file").write_text("x")
    (public / "folder").chmod(mode)
    targets = [public / "folder", public / "folder/file"]
    code = (
        "import os, sys; os.setgroups([]); os.setresgid(*[70000] * 3); os.setresuid(*[70000] * 3);"
        "can = lambda p: os.access(p, os.R_OK | (os.X_OK if os.path.isdir(p) else 0));"
        "print([can(p) for p in sys.argv[1:]])"
    )

    readable = [blocking_path(one, 70_000) is None for one in targets]

    real = subprocess.run(
        [sys.executable, "-c", code, *map(str, targets)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=True,
    )
    assert real.stdout.strip() == str(readable)


@pytest.mark.skipif(not may_change_users(), reason="needs CAP_SETUID, to give ids away")
def test_a_process_can_switch_to_the_ids_of_this_machine() -> None:
    found = find_users()
    assert found.range is not None, found.reason
    user = found.range.acquire()
    code = (
        f"import os; os.setgroups([]); os.setresgid(*[{user}] * 3); os.setresuid(*[{user}] * 3);"
        "print(os.getuid(), os.getgid())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=30, check=True
    )

    assert done.stdout.split() == [str(user), str(user)]
    found.range.release(user)
    found.range.close()
