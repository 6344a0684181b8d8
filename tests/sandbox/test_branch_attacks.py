"""Sessions that misbehave at the moment in which the walls allow them to fork.

They replace the code that answers a `Branch` message, as hostile code can.
"""

from __future__ import annotations

import time

import pytest
from processes import Leftovers
from sandbox_sessions import PRELUDE, family, soon

from envweave.errors import BranchError, SandboxError
from envweave.sandbox import Limits, Sandbox

pytestmark = pytest.mark.slow  # starts many sandbox sessions

TIMEOUT_S = 6.0
"""How long past its deadline, which is below a second here, a call may take on a busy machine."""


@pytest.fixture(scope="module")
def box():
    with Sandbox(isolation="namespace", limits=Limits(timeout_s=0.7, processes=24)) as box:
        yield box


@pytest.fixture(autouse=True)
def _short_deadline(monkeypatch):
    monkeypatch.setattr("envweave.sandbox.protocol.session_protocol._MIN_BRANCH_S", 0.7)


@pytest.fixture
def evil(box):
    """Return a function that makes sessions which answer `Branch` with the given code."""
    made = []

    def make(code: str, *, of: str = "__call__"):
        session = box.session()
        made.append(session)
        done = session.run(f"{PRELUDE}\n{code}\nbranching.BranchServer.{of} = evil", timeout_s=5.0)
        assert done.success, done
        return session

    yield make
    for session in made:
        session.close()


def refused(session) -> str:
    """Branch, expect a timely refusal, and return the reason."""
    began_s = time.monotonic()
    with pytest.raises(BranchError) as refusal:
        session.branch()
    assert time.monotonic() - began_s < 0.7 + TIMEOUT_S
    return str(refusal.value)


HANGS = {
    "at once": "def evil(self, message): wait()",
    "with the descriptor": "def evil(self, message): begin(self, message); wait()",
    "before it says who it is": """
def evil(self, message):
    there = begin(self, message)
    self._runner.send(Replied(message.id, None, None))
    wait()""",
    "as a copy": """
def evil(self, message):
    there = begin(self, message)
    if os.fork() == 0: wait()
    os.close(there)
    self._runner.send(Replied(message.id, None, None))""",
    "with endless words": """
def evil(self, message):
    words = frame([3, 12345, None, None]) * 50
    ends = time.monotonic() + 30
    while time.monotonic() < ends: os.write(3, words)""",
    "with endless calls whose answers it does not read": """
def evil(self, message):
    for _ in range(20_000): os.write(3, frame([1, 5, "echo", [], {}]))
    wait()""",
    "byte by byte": """
def evil(self, message):
    for byte in frame([3, 12345, None, ["x" * 60_000]]):
        os.write(3, bytes([byte]))
        time.sleep(0.02)""",
    "in the middle of a frame": """
def evil(self, message):
    os.write(3, frame([3, message.id, None, None])[:-1]); wait()""",
}


@pytest.mark.slow  # waits for the deadline
@pytest.mark.parametrize("when", HANGS)
def test_a_session_that_hangs_while_branching_is_killed_at_the_deadline(box, evil, when):
    session = evil(HANGS[when])

    refused(session)

    with box.session() as fresh:
        assert fresh.run("6 * 7", timeout_s=5.0).return_value == 42


COPIES_THAT_HANG = {
    "before it moves": "def evil(self, message, there): wait()",
    "before it leaves its namespaces": """
def evil(self, message, there):
    os.write(there, frame([3, message.id, None, []])); wait()""",
    "before it is ready": """
def evil(self, message, there):
    os.write(there, frame([3, message.id, None, []])); os.read(there, 1)
    kernel.unshare(kernel.NEW_USERS | kernel.NEW_MOUNTS)
    os.write(there, frame([3, message.id, None, None])); wait()""",
    "with endless words": """
def evil(self, message, there):
    os.write(there, frame([3, message.id, None, []])); os.read(there, 1)
    ends = time.monotonic() + 30
    while time.monotonic() < ends: os.write(there, frame([3, 12345, None, None]) * 50)""",
}


@pytest.mark.slow  # waits for a deadline
@pytest.mark.parametrize("when", COPIES_THAT_HANG)
def test_a_copy_that_hangs_is_killed_at_the_deadline(box, evil, when):
    session = evil(COPIES_THAT_HANG[when], of="_become_session")

    refused(session)

    assert soon(lambda: len(family(session._handle.pid)) <= 1)
    with box.session() as fresh:
        assert fresh.run("6 * 7", timeout_s=5.0).return_value == 42


HIDDEN = """
def evil(self, message):
    there = begin(self, message)
    children = []
    for _ in range(20):
        try: children.append(os.fork())
        except OSError: break
        if children[-1] == 0: wait()
    forks.append(len(children))
    self._runner.send(Replied(message.id, Failure("OSError", "no luck", ""), None))
forks = []
"""


def test_a_fork_that_a_session_hides_is_found_and_killed(evil):
    session = evil(HIDDEN)

    for _ in range(3):
        assert "no luck" in refused(session)

    assert session.run("forks").return_value == [1, 1, 1]
    assert soon(lambda: family(session._handle.pid) == {session._handle.pid})


def test_a_fork_that_a_branch_hides_does_not_outlive_it(box, evil):
    session = evil(HIDDEN + "\nhidden, evil = evil, usual\n")
    branch = session.branch()
    branch.run("branching.BranchServer.__call__ = hidden")

    refused(branch)
    branch.close()

    assert soon(lambda: family(session._handle.pid) == {session._handle.pid})
    assert session.run("1 + 1").return_value == 2


def test_other_threads_cannot_use_the_allowed_fork(evil):
    session = evil("""
libc, won = ctypes.CDLL(None, use_errno=True), []
def grab(ends):
    while time.monotonic() < ends:
        if libc.syscall(57) >= 0: won.append(1)
def evil(self, message):
    threads = [threading.Thread(target=grab, args=(time.monotonic() + 0.2,)) for _ in range(8)]
    for one in threads: one.start()
    for one in threads: one.join()
    usual(self, message)
""")

    with session.branch() as branch:
        assert branch.run("won").return_value == []
    assert session.run("won").return_value == []


def test_a_session_cannot_impersonate_a_copy(evil):
    session = evil("""
def evil(self, message):
    there = begin(self, message)
    os.write(there, frame([3, message.id, None, []]))
    self._runner.send(Replied(message.id, None, None))
""")

    assert "did not make a copy" in refused(session)
    assert session.run("1 + 1").return_value == 2


@pytest.mark.parametrize(
    "payload",
    [
        "b'no message at all'",
        "b'\\xc1' * 100",
        "msgspec.msgpack.encode([0, message.id, '', '', 1, True, None, None, False, False])",
        "msgspec.msgpack.encode([9])",
        "msgspec.msgpack.encode([3, message.id + 1, None, []])",
        "msgspec.msgpack.encode([3, message.id, None, 'inodes'])",
        "msgspec.msgpack.encode([3, message.id, ['E', 'm', 't'], []])",
        "b''",
    ],
)
def test_a_copy_that_sends_an_unexpected_message_is_refused(evil, payload):
    session = evil(f"""
def evil(self, message, there):
    data = {payload}
    os.write(there, struct.pack("<I", len(data)) + data); wait()
""", of="_become_session")  # fmt: skip

    refused(session)

    assert soon(lambda: len(family(session._handle.pid)) <= 1)


def test_forged_inodes_reveal_no_file(evil):
    session = evil("""
import random
lies = [-1, 0, 1, 2**63, 2**62, True, None, "1", 1.5, [1], *range(9000)]
def evil(self, message, there):
    old, branching._open_files = branching._open_files, lambda here: []
    send = self._runner.send
    def lying(message):
        if isinstance(message, Replied) and message.value == []:
            message = Replied(message.id, None, lies)
        send(message)
    self._runner.send = lying
    become_session(self, message, there)
    self._runner.send = send
""", of="_become_session")  # fmt: skip
    session.write_file("kept.txt", b"kept")

    with session.branch() as branch:
        assert branch.read_file("kept.txt") == b"kept"


def test_a_copy_that_keeps_its_capabilities_gains_nothing(evil):
    session = evil("""
from envweave.sandbox.walls import capabilities
def evil(self, message, there):
    capabilities.drop_effective = lambda: None
    become_session(self, message, there)
""", of="_become_session")  # fmt: skip

    with session.branch() as branch:
        seen = branch.run(
            """
libc = ctypes.CDLL(None, use_errno=True)
held = capabilities.held()
def call(number, *arguments):
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return libc.syscall(number, *given), ctypes.get_errno()
tried = [
    call(165, b"tmpfs", b"/home/agent", b"tmpfs", 0, 0), call(166, b"/home/agent", 2),
    call(161, b"/"), call(155, b".", b"."), call(308, 3, 0), call(272, 0x20000),
    call(272, 0x10000000), call(272, 0x10020000), call(105, 0), call(117, 0, 0, 0),
    call(170, b"x", 1), call(101, 16, 1, 0, 0), call(310, 1, 0, 0, 0, 0, 0),
    call(430, b"tmpfs", 0), call(428, -100, b"/", 1),
    call(442, -100, b"/", 0, 0, 0), call(133, b"n", 0o20666, 0x103), call(92, b"/", 0, 0),
    call(57), call(56, 17, 0, 0, 0, 0), call(435, 0, 0), call(159, 0), call(164, 0, 0),
]
[held != 0, [one for one in tried if one[0] >= 0 or one[1] not in (1, 38)]]
""",
            timeout_s=5.0,
        )

    assert seen.return_value == [True, []]


def test_a_copy_that_stays_in_its_parents_namespaces_is_refused(evil):
    session = evil("""
def evil(self, message, there):
    branching.kernel.unshare = lambda flags: None
    branching.capabilities.drop_effective = lambda: None
    become_session(self, message, there)
""", of="_become_session")  # fmt: skip
    session.write_file("kept.txt", b"kept")

    refused(session)

    assert session.read_file("kept.txt") == b"kept"
    assert soon(lambda: family(session._handle.pid) == {session._handle.pid})


RACES = {
    "files, links and folders that take turns": (
        "name = f'd/{number}'; open(name, 'w').close(); os.unlink(name); os.symlink('/', name)",
        "os.unlink(name); os.mkdir(name); os.rmdir(name)",
    ),
    "names that move": (
        "os.rename(f'd/{number}', f'd/m{number}')",
        "os.rename(f'd/m{number}', f'd/{number}')",
    ),
    "a file that grows and shrinks": (
        "file = os.open('f', os.O_WRONLY | os.O_TRUNC)",
        "os.write(file, b'x' * 1_000_000); os.close(file)",
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_files_may_change_while_they_are_copied(box, race):
    with box.session() as session:
        session.run(f"""
import os, threading
os.mkdir("d"); open("f", "w").close()
for number in range(200): open(f"d/{{number}}", "w").close()
over = []
def spin(number):
    while not over:
        try:
            {RACES[race][0]}
            {RACES[race][1]}
        except OSError: pass
for number in range(4): threading.Thread(target=spin, args=(number,), daemon=True).start()
""")  # fmt: skip
        for _ in range(5):
            try:
                with session.branch() as branch:
                    assert branch.run("sorted(os.listdir('.'))").return_value == ["d", "f", "tmp"]
            except SandboxError as refusal:
                assert isinstance(refusal, BranchError), refusal  # noqa: PT017 - either is right
        assert session.run("over.append(1); 1 + 1", timeout_s=5.0).return_value == 2


@pytest.mark.slow  # starts several sandboxes
def test_a_file_with_a_non_utf8_name_may_be_open(box):
    with box.session() as session:
        session.run("file = open(b'\\xff\\xfe', 'w+'); file.write('said'); file.flush()")

        with session.branch() as branch:
            assert branch.run("file.seek(0); file.read()").return_value == "said"
            assert branch.run("import os; os.listdir(b'.')").return_value == [b"tmp", b"\xff\xfe"]


def test_a_closed_parent_is_not_woken_by_its_branch(box):
    with box.session() as session:
        session.run("""
import mmap, os, threading, time
shared = mmap.mmap(-1, 8)
def count():
    while True:
        shared[:8] = (int.from_bytes(shared[:8], "little") + 1).to_bytes(8, "little")
        time.sleep(0.001)
def moves():
    before = shared[:8]; time.sleep(0.2)
    return before != shared[:8]
""")  # fmt: skip
        branch = session.branch()
        session.run("threading.Thread(target=count, daemon=True).start()")
        assert branch.run("moves()").return_value is True

    seen = branch.run("""
for _ in range(100):  # it stops when each of its threads is notified, which may take a moment
    if not moves(): break
for pid in (1, 0, -1):
    try: os.kill(pid, 18)
    except OSError: pass
moves()
""", timeout_s=60.0)  # fmt: skip
    branch.close()

    assert seen.return_value is False


def test_branches_that_fail_leave_no_descriptor_behind(evil):
    session = evil("""
def evil(self, message):
    begin(self, message)
    self._runner.send(Replied(message.id, Failure("OSError", "no luck", ""), None))
""")
    refused(session)
    left = Leftovers()

    for _ in range(5):
        refused(session)

    assert left.descriptors() == []
