"""Sessions that the extension spawns for compact orders are like those spawned by Python."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envweave.errors import SandboxError
from envweave.sandbox import Sandbox
from envweave.sandbox.processes.template import WallSetupError
from envweave.sandbox.protocol.messages import SpawnRequest
from envweave.sandbox.protocol.orders import decode_compact, encode_compact, is_compact
from envweave.sandbox.walls.mounts import WORK

pytestmark = pytest.mark.slow  # starts many sandbox sessions

try:
    from envweave.sandbox import _spawn
except ImportError:
    _spawn = None

needs_extension = pytest.mark.skipif(_spawn is None, reason="needs the extension")

FACTS = """
import gc, os, resource, signal

def lines():
    wanted = ("Groups", "NoNewPrivs", "Seccomp", "Cap", "Sig", "Shd", "NSpid")
    with open("/proc/self/status") as file:
        return [line for line in file if line.startswith(wanted)]

def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

here, room = os.stat("."), os.statvfs(".")
kinds = [name for name in dir(resource) if name.startswith("RLIMIT_")]
{
    "status": lines() if os.path.exists("/proc/self/status") else None,
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(one)) for one in range(1, 32) if one not in (9, 19)],
    "limits": [resource.getrlimit(getattr(resource, kind)) for kind in kinds],
    "room": [room.f_blocks, room.f_files, room.f_flag],
    "owner": [here.st_uid == os.getuid(), here.st_gid == os.getgid(), oct(here.st_mode)],
    "files": os.listdir("."),
    "descriptors": [number for number in range(64) if is_open(number)],
    "users": len({*os.getresuid()}) + len({*os.getresgid()}),
    "pid": os.getpid(),
    "umask": os.umask(0o77),
    "collects": gc.isenabled(),
}
"""


def run(box: Sandbox, code: str, seed: int | None = None) -> Any:
    with box.session(seed=seed) as session:
        return session.run(code)


def user_of_a_session(box: Sandbox) -> int | None:
    with box.session() as session:
        return session._handle._resources.user_inside


def close(sessions: list[Any]) -> None:
    for one in sessions:
        one.close()


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """A folder that other users can read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def facts(session: Any) -> Any:
    result = session.run(FACTS)
    assert result.success, result.traceback
    return result.return_value


@needs_extension
@pytest.mark.parametrize("profile", ["python", "shell"])
def test_a_session_of_the_loop_equals_one_spawned_by_python(profile: str) -> None:
    found = []
    for native in (True, False):
        with Sandbox(isolation="namespace", profile=profile, native=native) as box:
            # The first one is spawned by an order that is not compact.
            with box.session() as first, box.session() as second, box.session(seed=3) as third:
                found += [facts(first), facts(second), facts(third)]
            sessions = box.sessions(3)
            found += [facts(one) for one in sessions]
            close(sessions)
            assert box._factory._shards[0].template._reads_compact is native

    assert all(one == found[0] for one in found[1:]), found


@needs_extension
def test_sessions_of_the_loop_have_users_of_their_own() -> None:
    with Sandbox(isolation="namespace") as box:
        sessions = box.sessions(20)
        users = [one.run("import os; os.getuid()").return_value for one in sessions]
        expected = [one._handle._resources.user_inside for one in sessions]

    if expected[0] is not None:
        assert users == expected


@pytest.mark.parametrize("native", [True, False])
def test_a_seed_gives_the_same_numbers_in_every_session(native: bool) -> None:
    with Sandbox(isolation="namespace", native=native) as box:
        code = "import random; random.random(), random.gauss(0, 1)"
        sessions = box.sessions(3, seeds=[7, 7, 8])
        drawn = [one.run(code).return_value for one in sessions]
        drawn.append(run(box, code, seed=7).return_value)
        unseeded = [run(box, code).return_value for _ in range(3)]
        close(sessions)

    assert drawn[0] == drawn[1] == drawn[3] != drawn[2]
    assert len(set(unseeded)) == 3


@needs_extension
def test_the_exit_status_of_a_session_of_the_loop_is_reported() -> None:
    with Sandbox(isolation="namespace") as box:
        sessions = box.sessions(4)

        ended = [one.run(f"import os; os._exit({at + 3})") for at, one in enumerate(sessions)]

    assert [one.exception_message for one in ended] == [
        f"Its code ended it: its process exited with status {at + 3}." for at in range(4)
    ]


@needs_extension
def test_more_sessions_than_the_loop_records_events_for_are_all_reaped() -> None:
    with Sandbox(isolation="namespace") as box:
        template = box.template_pids()[0]
        for _ in range(20):
            close(box.sessions(16))
        deadline = time.monotonic() + 20
        while len(children(template)) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        left = children(template)
        last = run(box, "1 + 1")

    assert len(left) <= 1  # the warm one
    assert last.return_value == 2


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@needs_extension
def test_sessions_of_the_loop_end_before_close_returns() -> None:
    box = Sandbox(isolation="namespace")
    sessions = box.sessions(16)
    pids = [one._handle.pid for one in sessions]
    box._factory._shards[0].template.close()

    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    box.close()

    assert alive == []


@needs_extension
def test_an_order_with_other_limits_makes_sessions_with_these() -> None:
    with Sandbox(isolation="namespace") as box:
        box.session().close()
        template = box._factory._shards[0].template
        user = user_of_a_session(box)
        request = SpawnRequest(None, 1 << 10, 1 << 16, work=WORK, user=user)

        one, two = (template.spawn([request])[0] for _ in range(2))

        for spawned in (one, two):
            assert spawned.socket.recv(100)  # it is ready
            spawned.socket.close()
            os.close(spawned.process)
        after = run(box, "print('a' * 5000)")
    assert len(after.stdout) == 5001


@needs_extension
def test_a_failed_wall_of_the_loop_is_reported() -> None:
    nobody = 10**7  # beyond every map of user ids
    with Sandbox(isolation="namespace") as box:
        box.session().close()
        factory = box._factory
        factory._warm.clear()
        factory._request = lambda resources: SpawnRequest(
            None, box.limits.output_bytes, box.limits.message_bytes, work=WORK, user=nobody
        )

        with pytest.raises(SandboxError, match="work folder: mount: Invalid argument"):
            box.session()


@needs_extension
def test_a_template_without_descriptors_reports_it() -> None:
    with Sandbox(isolation="namespace") as box:
        box.session().close()
        template = box._factory._shards[0].template
        user = user_of_a_session(box)
        order = encode_compact([user], 2)  # two descriptors, and one is attached

        with pytest.raises(WallSetupError, match="no descriptors left"):
            template._order(order, object, [0])

        assert run(box, "1").return_value == 1


@needs_extension
def test_orders_of_many_threads_do_not_mix() -> None:
    with Sandbox(isolation="namespace", cgroups="never") as box:
        wrong: list[Any] = []

        def work(number: int) -> None:
            for at in range(5):
                with box.session(seed=number * 100 + at) as one:
                    value = one.run(f"{number}, {at}").return_value
                    if value != (number, at):
                        wrong.append(value)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert wrong == []


@needs_extension
def test_an_interrupt_of_the_template_does_not_end_it() -> None:
    with Sandbox(isolation="namespace") as box:
        box.session().close()
        os.kill(box.template_pids()[0], signal.SIGINT)

        assert run(box, "1").return_value == 1
        raised = run(box, "import signal; signal.raise_signal(2)")
    assert raised.exception_type == "KeyboardInterrupt"


@pytest.mark.parametrize("native", [True, False])
def test_a_template_with_threads_spawns_in_python(
    readable_folder: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.syspath_prepend(str(readable_folder))  # where it is looked for at first
    (readable_folder / "starts_thread.py").write_text(
        "import os, threading, time\n"
        "hooked = []\n"
        "os.register_at_fork(after_in_child=lambda: hooked.append(1))\n"
        "threading.Thread(target=time.sleep, args=(10000,), daemon=True).start()\n"
    )
    code = "import starts_thread, threading; len(starts_thread.hooked), threading.active_count()"
    with Sandbox(
        isolation="namespace", preload=["starts_thread"], visible=[readable_folder], native=native
    ) as box:
        template = box.template_pids()[0]
        found = [run(box, code, seed=at).return_value for at in range(4)]
        mask = run(box, "import signal; sorted(signal.pthread_sigmask(0, []))").return_value
        deadline = time.monotonic() + 20
        while children(template) and time.monotonic() < deadline:
            time.sleep(0.01)

        assert not box._factory._shards[0].template._reads_compact
        assert children(template) == []

    assert found == [(1, 1)] * 4
    assert mask == []


@pytest.mark.parametrize(("users", "each"), [([5], 1), ([1, 2, 3], 4), ([None, None], 2)])
def test_a_compact_order_is_read_as_it_was_written(users: list[int | None], each: int) -> None:
    data = encode_compact(users, each)

    assert is_compact(data)
    assert decode_compact(data) == (users, each)


@pytest.mark.parametrize("data", [b"\xc1", b"\xc1\x02\x01\x01", b"\xc1\x01\x01\x01abcde"])
def test_an_invalid_compact_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="compact"):
        decode_compact(data)
