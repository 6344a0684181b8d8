"""The files of a branch are the same whether a helper or a fork of the template copies them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envweave.errors import BranchError
from envweave.sandbox import Limits, Sandbox
from envweave.sandbox.inside.branch import copy_with_helper
from envweave.sandbox.processes.template import WallSetupError
from envweave.sandbox.protocol.orders import Copied, CopyFiles, OrderFailed

pytestmark = pytest.mark.slow  # starts many sandbox sessions

MAKE = """
import os
os.makedirs("a/b/c")
for name in ("f", "a/g", "a/b/c/h"):
    with open(name, "w") as file:
        file.write(name * 1000)
os.link("f", "a/linked")
os.symlink("a/g", "pointing")
os.symlink("/etc/passwd", "outside")
os.mkdir("closed")
open("closed/inner", "w").close()
os.chmod("closed", 0o500)
os.chmod("a/g", 0o640)
for at, name in enumerate(("f", "a/b/c/h", "a/b/c", "a/b", "a/g", "a", "closed/inner", "closed")):
    os.utime(name, ns=(10**18, 10**18 + at))
held = open("a/g", "r+")
held.seek(7)
import tempfile
nameless = tempfile.TemporaryFile("w+")
nameless.write("no name")
nameless.flush()
"""
SPARSE = """
import os
os.makedirs("a/b")
for number in range(5):
    with open(f"a/b/{number}", "w") as file:
        os.truncate(file.fileno(), 1 << 19)
"""
TREE = """
import os
def seen(path):
    found = os.lstat(path)
    content = None
    if os.path.islink(path):
        content = os.readlink(path)
    elif os.path.isfile(path):
        content = open(path).read()
    owned = found.st_uid == os.getuid()
    return path, found.st_mode, found.st_nlink, found.st_mtime_ns, content, owned
paths = sorted(os.path.join(top, name) for top, d, f in os.walk(".") for name in d + f)
nameless.seek(0)
fixed = [seen(path) for path in paths if path not in ("./tmp",)]
({path[0]: path for path in fixed}, held.read(5), held.tell(), nameless.read())
"""


def tree(session: Any) -> Any:
    result = session.run(TREE)
    assert result.success, result.traceback
    return result.return_value


def test_the_files_of_a_branch_are_those_of_its_parent_by_either_way_of_copying() -> None:
    found = []
    for native in (True, False):
        with Sandbox(isolation="namespace", native=native) as box, box.session() as parent:
            assert parent.run(MAKE).success
            with parent.branch() as child, child.branch() as grandchild:
                child.run("held.seek(7)")
                parts = [tree(grandchild), tree(child), tree(parent)]
            found += parts

    for files, *_ in found:
        del files["./pointing"], files["./outside"]  # a link has the time of its copy
    assert all(one == found[0] for one in found[1:])


def test_changes_of_a_branch_are_not_seen_by_its_parent() -> None:
    with Sandbox(isolation="namespace") as box, box.session() as parent:
        parent.run("open('f', 'w').write('old')")
        with parent.branch() as child:
            child.run("open('f', 'w').write('new'); open('g', 'w').close()")

            seen = parent.run("import os; open('f').read(), os.path.exists('g')").return_value

    assert seen == ("old", False)


@pytest.mark.parametrize("native", [True, False])
def test_files_that_cannot_be_copied_leave_the_template_as_it_was(native: bool) -> None:
    def descriptors() -> int:
        """Return how many the template has, once it is done with its last order."""
        box.session().close()
        deadline = time.monotonic() + 20
        last = -1
        while time.monotonic() < deadline:
            count = len(list(Path(f"/proc/{template}/fd").iterdir()))
            if count == last:
                return count
            last = count
            time.sleep(0.2)
        return -1

    limits = Limits(disk_bytes=1 << 20)
    with Sandbox(isolation="namespace", limits=limits, native=native) as box:
        template = box.template_pids()[0]
        with box.session() as first, first.branch() as second:
            assert second.run("1").return_value == 1
        before = descriptors()
        for _ in range(3):
            with box.session() as session:
                assert session.run(SPARSE).success

                with pytest.raises(BranchError, match="No space left"):
                    session.branch()

        assert box.template_pids() == [template]
        assert descriptors() == before
        with box.session() as session, session.branch() as branch:
            assert branch.run("2").return_value == 2


def test_a_folder_deeper_than_any_recursion_is_copied() -> None:
    deep = (
        "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\n"
        "os.chdir('/home/agent')"
    )
    count = (
        "n = 0\nwhile os.path.isdir('d'):\n    os.chdir('d'); n += 1\nos.chdir('/home/agent')\nn"
    )
    with Sandbox(isolation="namespace") as box, box.session() as session:
        session.run(deep)
        with session.branch() as branch:
            found = branch.run(count).return_value
        alive = Path(f"/proc/{box.template_pids()[0]}").exists()

    assert found == 1500
    assert alive


@pytest.mark.parametrize("native", [True, False])
def test_an_order_without_its_descriptors_leaves_the_template_alive(native: bool) -> None:
    with Sandbox(isolation="namespace", native=native) as box, box.session() as session:
        template = box._factory._shards[0].template
        order = CopyFiles(pid=1, user=1, inodes=[])

        # The kernel drops descriptors that a process has no room for.
        with pytest.raises(WallSetupError, match="descriptors"):
            template._order(order, Copied, [0])

        with session.branch() as branch:
            assert branch.run("3").return_value == 3
        assert box.template_pids() == [template.pid]


class OpeningHelper:
    """Opens two folders in place of the calls that would enter a branch."""

    def __init__(self, source: Path, target: Path) -> None:
        self.folders = (source, target)

    def perform_in_helper(self, calls: Any) -> tuple[int, int]:
        for folder in self.folders:
            os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        return -1, 0


def test_an_unexpected_error_of_a_copy_is_reported_and_leaves_nothing_open(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    source.mkdir()
    (source / "file").write_text("text")
    walls: Any = SimpleNamespace(
        native=OpeningHelper(source, target),
        alone=True,
        plan=SimpleNamespace(users=1, shell=False),
        processes=-1,
        limits=Limits(),
    )
    before = len(list(Path("/proc/self/fd").iterdir()))

    report = copy_with_helper(CopyFiles(pid=1, user=1 << 70, inodes=[]), 0, walls)

    assert isinstance(report, OrderFailed)
    assert "its files could not be copied" in report.text
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("native", [True, False])
def test_open_files_with_more_paths_than_a_message_holds_fail_their_branch_alone(
    native: bool,
) -> None:
    opening = (
        "import os\nfolder = '/'.join(['d' * 240] * 4)\nos.makedirs(folder)\n"
        "held = [open(f'{folder}/{n}', 'w') for n in range(300)]"
    )
    limits = Limits(open_files=400)
    with Sandbox(isolation="namespace", limits=limits, native=native) as box:
        template = box.template_pids()[0]
        with box.session() as session:
            assert session.run(opening).success

            with pytest.raises(BranchError, match="open files"):
                session.branch()

        assert box.template_pids() == [template]
        with box.session() as session, session.branch() as branch:
            assert branch.run("3").return_value == 3


@pytest.mark.parametrize("native", [True, False])
def test_long_paths_do_not_use_much_memory_of_the_template(native: bool) -> None:
    deep = (
        "import os\nfor _ in range(1000):\n    os.mkdir('d' * 240); os.chdir('d' * 240)\n"
        "for n in range(1000):\n    os.mkdir(str(n))\n    open(f'{n}/f', 'w').close()\n"
        "    os.link(f'{n}/f', f'{n}/g')\nos.chdir('/home/agent')"
    )

    def peak_kilobytes() -> int:
        status = Path(f"/proc/{box.template_pids()[0]}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    with Sandbox(isolation="namespace", native=native) as box, box.session() as session:
        assert session.run(deep).success
        before = peak_kilobytes()

        with pytest.raises(BranchError, match="name too long"):
            session.branch()

        assert peak_kilobytes() - before < 100_000
