"""The attack runner detects what a session leaves behind and reaches, even if it hides."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import runner as attacks
from attacks.victim import VARIABLE, victim
from processes import descendants, is_alive, keeping_orphans, read_process

DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])
os.wait()
"""


def start_daemon() -> int:
    """Leave a process whose parents are gone, and which has become another program."""
    started = subprocess.run(
        [sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(started.stdout)


def test_a_process_that_hides_from_its_parents_is_found_and_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attacks, "MARGIN_S", 0.0)
    with keeping_orphans():
        before = descendants()
        pid = start_daemon()

        left = attacks._left(before)

        assert [process.pid for process in left] == [pid]
        os.waitpid(pid, 0)
        assert not is_alive(pid)


def test_an_earlier_process_does_not_count_as_left_over() -> None:
    with (
        keeping_orphans(),
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        left = attacks._left(descendants())

        assert left == []
        assert is_alive(process.pid)
        process.communicate(b"\n")


def test_orphans_are_adopted_only_while_requested() -> None:
    with keeping_orphans():
        pid = start_daemon()

        found = read_process(pid)

        assert found is not None
        assert found.parent == os.getpid()
        found.kill()
        os.waitpid(pid, 0)


def test_the_victim_stores_its_secret_as_hosts_do_and_removes_it() -> None:
    with victim() as host:
        path = Path(host.placeholders("")["SECRET_PATH"])

        assert path.read_text() == host.secret == os.environ[VARIABLE]
        assert path.stat().st_mode & 0o004
        assert any(host.secret.encode() in piece for piece in host.in_memory)

    assert VARIABLE not in os.environ
    assert not path.exists()


def test_a_connection_to_the_victim_is_recorded_once() -> None:
    with victim() as host:
        streams, datagrams = host.placeholders(""), host.placeholders("sendto")
        with socket.create_connection(("127.0.0.1", int(streams["PORT"]))) as one:
            one.sendall(b"tcp")
        for address in (streams["UNIXPATH"], "\0" + streams["ABSTRACT"]):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(address)
        for address in (datagrams["UNIXPATH"], "\0" + datagrams["ABSTRACT"]):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
                one.sendto(b"datagram", address)

        outcome = host.connections()

        assert sorted(outcome) == [
            "ABSTRACT: b''",
            "ABSTRACT: b'datagram'",
            "PORT: b'tcp'",
            "UNIXPATH: b''",
            "UNIXPATH: b'datagram'",
        ]
        assert host.connections() == []
