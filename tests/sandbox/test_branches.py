"""Live copies of sessions: the same variables and files, independent afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from sandbox_sessions import family, soon

from envweave.errors import (
    BranchError,
    OptionError,
    SandboxError,
    SessionEndedError,
    SessionLostError,
)
from envweave.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def box():
    with Sandbox(isolation="namespace", preload=["numpy"]) as box:
        yield box


def test_a_branch_has_the_variables_and_is_independent(box):
    with box.session() as session:
        session.run("x = [1]\nclass A: pass\na = A(); a.b = 2\ngen = iter(range(10)); next(gen)")
        with session.branch() as branch:
            there = branch.run("x.append(2); [x, a.b, next(gen)]").return_value
            here = session.run("[x, a.b, next(gen)]").return_value

    assert there == [[1, 2], 2, 1]
    assert here == [[1], 2, 1]


def test_a_session_can_be_branched_more_often_than_its_process_limit():
    few = Limits(processes=16)
    with Sandbox(isolation="namespace", limits=few) as box, box.session() as session:
        for _ in range(40):
            session.branch().close()

        assert session.run("1 + 1").return_value == 2


@pytest.mark.slow  # starts several sandboxes
def test_a_branch_has_separate_files(box):
    with box.session() as session:
        session.write_file("data/a.txt", b"before")
        session.run("import os; os.symlink('data/a.txt', 'link'); os.link('data/a.txt', 'same')")
        session.run("os.chmod('same', 0o400); os.utime('same', (5, 6)); os.mkdir('empty')")
        with session.branch() as branch:
            branch.write_file("data/b.txt", b"there")
            session.write_file("data/c.txt", b"here")
            branch.run("os.chmod('same', 0o600); open('link', 'w').write('changed')")

            assert branch.list_files() == ["data/a.txt", "data/b.txt", "link", "same"]
            assert session.list_files() == ["data/a.txt", "data/c.txt", "link", "same"]
            assert (branch.read_file("same"), session.read_file("same")) == (b"changed", b"before")
            seen = session.run("s = os.stat('same'); [s.st_mtime, s.st_nlink, oct(s.st_mode)]")
            assert seen.return_value == [6.0, 2, "0o100400"]
            assert branch.run("[os.stat('same').st_nlink, os.listdir('empty')]").return_value == [
                2,
                [],
            ]


def test_an_open_file_stays_open_in_the_copy(box):
    with box.session() as session:
        session.run("f = open('log', 'w+'); f.write('one '); f.flush()")
        session.run("import tempfile; t = tempfile.TemporaryFile(); t.write(b'temp'); t.flush()")
        with session.branch() as branch:
            branch.run("f.write('there'); f.flush(); t.write(b'-b'); t.flush()")
            session.run("f.write('here'); f.flush()")

            assert branch.read_file("log") == b"one there"
            assert session.read_file("log") == b"one here"
            assert branch.run("t.seek(0); t.read()").return_value == b"temp-b"
            assert session.run("t.seek(0); t.read()").return_value == b"temp"


def test_the_work_folder_is_the_same_path_in_a_branch(box):
    with box.session() as session:
        session.run("import os; os.mkdir('deep'); os.chdir('deep'); open('x', 'w').write('1')")
        with session.branch() as branch:
            seen = branch.run(
                "[os.getcwd(), open('x').read(), os.listdir(os.path.expanduser('~'))]"
            )

    assert seen.return_value[0].endswith("/deep")
    assert (seen.return_value[1], "deep" in seen.return_value[2]) == ("1", True)


def test_branches_of_branches_outlive_their_parents(box):
    session = box.session()
    session.run("x = 1")
    child = session.branch()
    child.run("x += 1")
    grandchild = child.branch()
    session.close()
    still = child.run("x").return_value
    child.close()

    assert still == 2
    assert grandchild.run("x + 1").return_value == 3
    grandchild.close()


def test_a_parent_killed_at_its_time_limit_does_not_kill_its_branches(box):
    with box.session() as session, session.branch() as branch:
        code = (
            "import time\nwhile True:\n try:\n  while True: time.sleep(1)\n except BaseException: 0"
        )
        result = session.run(code, timeout_s=0.1)

        assert result.session_ended
        assert branch.run("1 + 1").return_value == 2


def test_a_branch_that_ends_does_not_kill_others(box):
    with box.session() as session:
        with session.branch() as branch:
            result = branch.run("import os; os._exit(3)")

            assert (result.session_ended, result.exception_type) == (True, "SessionEnded")
            with pytest.raises(SessionEndedError):
                branch.run("1")
        assert session.run("1 + 1").return_value == 2


def test_branches_are_lost_when_the_first_session_ends_itself(box):
    with box.session() as session, session.branch() as branch:
        session.run("import os; os._exit(3)")

        with pytest.raises(SessionLostError):
            branch.run("1")


def test_branches_draw_different_numbers_unless_seeded(box):
    code = "import random, numpy; [random.random(), numpy.random.rand()]"
    with box.session(seed=1) as session:
        copies = [
            session.branch(),
            session.branch(),
            session.branch(seed=9),
            session.branch(seed=9),
        ]
        drawn = [tuple(one.run(code).return_value) for one in copies]
        for one in copies:
            one.close()

    assert drawn[2] == drawn[3]
    assert len(set(drawn)) == 3


DRAW = (
    "import random, numpy; [random.random(), random.gauss(0, 1), numpy.random.rand(), own.rand()]"
)


@pytest.mark.parametrize("seed", [1, None])
def test_a_branch_that_is_not_reseeded_continues_the_random_sequences(box, seed):
    with box.session(seed=seed) as session:
        session.run("import random, numpy; random.gauss(0, 1); own = numpy.random.RandomState()")
        with session.branch(reseed=False) as branch, branch.branch(reseed=False) as second:
            drawn = [one.run(DRAW).return_value for one in (session, branch, second)]
            later = [one.run(DRAW).return_value for one in (session, branch, second)]

    assert drawn[0] == drawn[1] == drawn[2]
    assert later[0] == later[1] == later[2] != drawn[0]


def test_a_seed_takes_effect_in_a_branch_that_imports_numpy_first():
    with (
        Sandbox(isolation="namespace") as box,
        box.session(seed=3) as session,
        session.branch(reseed=False) as branch,
    ):
        code = "import numpy; numpy.random.rand()"
        drawn = [one.run(code).return_value for one in (session, branch)]

    assert drawn[0] == drawn[1]


def test_a_seed_for_a_branch_that_is_not_reseeded_is_refused(box):
    with box.session() as session:
        with pytest.raises(OptionError, match="it takes no seed"):
            session.branch(seed=1, reseed=False)

        assert session.run("1 + 1").return_value == 2


LOST_OR_SHARED = {
    "threads": "import threading\nhold = threading.Event()\n"
    "worker = threading.Thread(target=hold.wait, daemon=True)\nworker.start()",
    "asyncio tasks": "import asyncio\ntask = asyncio.create_task(asyncio.sleep(60))\n"
    "await asyncio.sleep(0)",
    "a pipe or a socket": "import os; ends = os.pipe()",
    "outside the work folder": "import os; f = open(os.__file__)",
    "a timer": "import signal; signal.alarm(60)",
    "mapped memory": "import mmap; memory = mmap.mmap(-1, 4096)",
    "mapped memory or files": "import numpy; numpy.save('a.npy', numpy.ones(9000))\n"
    "array = numpy.load('a.npy', mmap_mode='r')",
}


@pytest.mark.parametrize("what", list(LOST_OR_SHARED))
def test_a_strict_branch_of_a_session_with_what_no_copy_can_have_is_refused(box, what):
    with box.session() as session:
        assert session.run(LOST_OR_SHARED[what]).success

        with pytest.raises(BranchError, match=what):
            session.branch(strict=True)

        assert session.run("1 + 1").return_value == 2
        session.branch().close()


def test_code_that_breaks_what_a_strict_branch_checks_loses_the_branch_alone(box):
    with box.session() as session:
        session.run("import os; real, os.sysconf = os.sysconf, None")

        with pytest.raises(BranchError, match="TypeError"):
            session.branch(strict=True)

        session.run("os.sysconf = real")
        session.branch(strict=True).close()


def test_a_strict_branch_is_made_after_threads_and_tasks_ended(box):
    with box.session() as session:
        session.run("import asyncio; done = asyncio.create_task(asyncio.sleep(0)); await done")
        session.run("import threading; t = threading.Thread(target=print); t.start(); t.join()")
        session.run("import os; f = open('log', 'w'); null = open(os.devnull); os.chdir('/')")
        with session.branch(strict=True) as branch, branch.branch(strict=True) as second:
            seen = second.run("await asyncio.sleep(0, 'awaited')").return_value

    assert seen == "awaited"


def test_open_files_are_separate_although_code_left_the_work_folder(box):
    with box.session() as session:
        session.run("import os; f = open('log', 'w'); os.chdir('/')")
        with session.branch() as branch:
            branch.run("f.write('there'); f.flush()")
            session.run("f.write('here'); f.flush()")
            read = branch.read_file("log"), session.read_file("log")

    assert read == (b"there", b"here")


def test_a_branch_calls_its_own_tools_of_the_same_names():
    def calls(made: list[str]):
        return {"note": made.append}

    here: list[str] = []
    there: list[str] = []
    with (
        Sandbox(isolation="namespace", tools=calls(here)) as box,
        box.session() as session,
        session.branch(tools=calls(there)) as branch,
        branch.branch() as second,
    ):
        for name, one in {"session": session, "branch": branch, "second": second}.items():
            one.run(f"note({name!r})")

    assert (here, there) == (["session"], ["branch", "second"])


def test_tools_of_other_names_are_refused_for_a_branch():
    with Sandbox(isolation="namespace", tools={"note": print}) as box, box.session() as session:
        with pytest.raises(OptionError, match="the code knows note"):
            session.branch(tools={"notes": print})

        assert session.run("1 + 1").return_value == 2


def test_a_session_can_be_ended_without_waiting(box):
    session = box.session()
    branch = session.branch()

    branch.end()
    branch.end()

    assert soon(lambda: len(family(session._handle.pid)) == 1)
    assert session.run("1 + 1").return_value == 2
    session.close()


def test_a_session_can_be_branched_for_twenty_generations(box):
    sessions = [box.session()]
    sessions[0].run("x = 0")
    for _ in range(20):
        sessions.append(sessions[-1].branch())
        sessions[-1].run("x += 1; open(str(x), 'w')")

    seen = sessions[-1].run("import os; [x, len(os.listdir('.'))]").return_value

    for session in sessions:
        session.close()
    assert seen == [20, 21]


def test_code_cannot_fork_before_during_or_after_a_branch(box):
    attempt = "import os\ntry: os.fork(); r = 'forked'\nexcept OSError as e: r = e.errno\nr"
    with box.session() as session:
        before = session.run(attempt).return_value
        with session.branch() as branch:
            after = [session.run(attempt).return_value, branch.run(attempt).return_value]

    assert [before, *after] == [1, 1, 1]


def test_a_session_that_uses_the_allowed_fork_itself_gains_nothing(box):
    """One fork uses up the permission, whichever code makes it."""
    with box.session() as session:
        session.run(
            "import os, threading, time\n"
            "def spam():\n"
            "    while True:\n"
            "        try:\n"
            "            if os.fork() == 0: time.sleep(100)\n"
            "        except OSError: pass\n"
            "threading.Thread(target=spam, daemon=True).start()"
        )
        with contextlib.suppress(SandboxError):
            session.branch().close()
        forked = len(_children(session._handle.pid))

    assert forked <= 1


def _run_for_ever(session):
    while True:
        session.run("1")


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in listed.split()]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    "options", [{"isolation": "landlock"}, {"isolation": "none"}, {"profile": "shell"}]
)
def test_branching_is_refused_with_a_reason_where_it_is_not_supported(options):
    with Sandbox(**options) as box, box.session() as session:
        with pytest.raises(BranchError, match="'namespace' and the profile 'python'"):
            session.branch()

        assert session.run("1 + 1").return_value == 2


def test_a_full_work_folder_can_be_branched(box):
    limits = Limits(disk_bytes=4 << 20, files=64)
    with Sandbox(isolation="namespace", limits=limits) as small, small.session() as session:
        session.run("open('big', 'wb').write(b'x' * (3 << 20))")
        with session.branch() as branch:
            assert branch.run("open('big', 'rb').read() == b'x' * (3 << 20)").return_value is True
            full = branch.run("open('more', 'wb').write(b'x' * (2 << 20))")

    assert "No space left" in full.exception_message


def test_killing_the_template_loses_branches_too_and_the_sandbox_recovers():
    with Sandbox(isolation="namespace") as box:
        with box.session() as session, session.branch() as branch:
            os.kill(box.template_pids()[0], signal.SIGKILL)
            for one in (session, branch):
                with pytest.raises(SessionLostError):
                    _run_for_ever(one)

        with box.session() as session, session.branch() as branch:
            assert branch.run("1 + 1").return_value == 2
