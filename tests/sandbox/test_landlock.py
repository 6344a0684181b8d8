"""Landlock: what a process may open, for each version that the kernel can emulate."""

from __future__ import annotations

import sys

import pytest
from sandbox_walls import run_behind_walls

from envweave.sandbox.walls import landlock

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or landlock.abi() < 1, reason="the kernel has no Landlock on"
)

SHUT = """
from envweave.sandbox.walls import capabilities, landlock
import json, os, sys

PYTHON = ("/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, *sys.path)

def shut(version=None, *, shell=False, read=PYTHON):
    capabilities.no_new_privileges()
    with landlock.opened(read) as reading, landlock.opened(["."]) as writing:
        with landlock.opened(["/dev/null"]) as devices:
            rules = landlock.ruleset(
                read=reading, write=writing, devices=devices, shell=shell, version=version
            )
    landlock.restrict_self(rules, version)
    os.close(rules)

def with_each_version(attempt):
    results = []
    for version in range(1, landlock.abi() + 1):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, json.dumps(attempt(version)).encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as answer:
            results.append(json.loads(answer.read()))
    return results
"""


def run_shut(code: str, work, **options):
    """Run code that restricts itself, without any other wall."""
    return run_behind_walls(f"{SHUT}\n{code}", work, landlock=False, seccomp=False, **options)


def test_every_version_protects_files_outside(tmp_path):
    (tmp_path / "outside").write_text("secret")
    work = tmp_path / "work"
    work.mkdir()

    results = run_shut(
        """
def attempt(version):
    shut(version)
    inside = [refusal(open, "file", "w"), refusal(os.mkdir, "folder"), refusal(os.unlink, "file")]
    os.rmdir("folder")
    return [
        refusal(open, "../outside"), refusal(open, "../outside", "a"), refusal(os.listdir, ".."),
        refusal(os.unlink, "../outside"), refusal(os.link, "../outside", "hard"), inside,
        refusal(open, "/dev/null", "w"), refusal(open, "/dev/zero"),
    ]

report(with_each_version(attempt))
""",
        work,
    )

    each = ["EACCES", "EACCES", "EACCES", "EACCES", "EXDEV", [None] * 3, None, "EACCES"]
    assert results == [each] * landlock.abi()


def test_missing_matches_what_a_version_lacks(tmp_path):
    (tmp_path / "outside").write_text("secret")
    work = tmp_path / "work"
    work.mkdir()
    (work / "folder").mkdir()

    results = run_shut(
        """
import socket
listener = socket.create_server(("127.0.0.1", 0))

def attempt(version):
    shut(version)
    open(f"file {version}", "w").close()
    return [
        refusal(os.rename, f"file {version}", f"folder/{version}"),
        refusal(os.truncate, "../outside", 0),
        refusal(socket.create_connection, listener.getsockname()),
        refusal(os.kill, os.getppid(), 0),
    ]

report(with_each_version(attempt))
""",
        work,
    )

    for version, (moved, cut, connected, signalled) in enumerate(results, 1):
        assert moved == (None if version >= 2 else "EXDEV")
        assert cut == ("EACCES" if version >= 3 else None)
        assert connected == ("EACCES" if version >= 4 else None)
        assert signalled == ("EPERM" if version >= 6 else None)
        assert len(landlock.missing(version)) == max(0, 6 - version)


@pytest.mark.skipif(landlock.abi() < 6, reason="the kernel's Landlock has no scopes")
def test_an_abstract_socket_outside_cannot_be_reached(tmp_path):
    results = run_shut(
        """
import socket
outside = socket.socket(socket.AF_UNIX)
outside.bind("\\0envweave-test-" + str(os.getpid()))
outside.listen()
shut()
report(refusal(socket.socket(socket.AF_UNIX).connect, outside.getsockname()))
""",
        tmp_path,
    )

    assert results == "EPERM"


@pytest.mark.parametrize("shell", [False, True])
def test_only_the_shell_profile_starts_programs_and_makes_named_pipes(tmp_path, shell):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)

    results = run_shut(
        f"""
import shutil, subprocess
shut(shell={shell})
report([
    refusal(subprocess.run, [os.path.realpath("/bin/true")]),
    refusal(subprocess.run, ["./script"]),
    refusal(os.mkfifo, "pipe"),
    refusal(os.mknod, "device", 0o020644, os.makedev(1, 3)),
    refusal(os.mknod, "socket", 0o140644),
])
""",
        tmp_path,
    )

    assert results[:3] == ([None] * 3 if shell else ["EACCES"] * 3)
    assert set(results[3:]) <= {"EACCES", "EPERM"}


def test_a_single_file_can_be_granted(tmp_path):
    for name in ("shown", "hidden"):
        (tmp_path / name).write_text(name)
    work = tmp_path / "work"
    work.mkdir()

    results = run_shut(
        """
shut(read=("../shown", "../absent"))
report([refusal(open, "../shown"), refusal(open, "../hidden"), refusal(open, "../shown", "a")])
""",
        work,
    )

    assert results == [None, "EACCES", "EACCES"]


def test_open_files_stay_open_and_rule_descriptors_are_closed(tmp_path):
    (tmp_path / "open").write_text("content")
    work = tmp_path / "work"
    work.mkdir()

    results = run_shut(
        """
file = open("../open")
before = len(os.listdir("/proc/self/fd"))
shut(read=("/proc",))
report([file.read(), len(os.listdir("/proc/self/fd")) - before])
""",
        work,
    )

    assert results == ["content", 0]


def test_without_landlock_a_ruleset_is_refused_with_the_reason():
    with pytest.raises(OSError, match="landlock: not enabled in this kernel"):
        landlock.ruleset(read=[], write=[], devices=[], shell=False, version=0)

    assert any("no Landlock" in sentence for sentence in landlock.missing(0))
    assert landlock.missing(landlock.LATEST) == []
