"""Python behind the walls of a real process: what is refused, and what works as usual."""

from __future__ import annotations

import sys

import pytest
from sandbox_walls import run_behind_walls

from envweave.sandbox.walls import landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

needs_landlock = pytest.mark.skipif(
    landlock.abi() < landlock.KEEPS_LENGTHS, reason="the kernel's Landlock is off or too old"
)


def test_calls_that_reach_beyond_the_process_are_refused(tmp_path):
    refusals = run_behind_walls(
        """
        import ctypes, os, resource, signal, socket, subprocess

        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        report({
            "fork": refusal(os.fork),
            "program": refusal(subprocess.run, ["/bin/true"]),
            "execve": refusal(os.execv, "/bin/true", ["true"]),
            "posix_spawn": refusal(os.posix_spawn, "/bin/true", ["true"], {}),
            "clone3": refusal(call, "clone3", bytes(88), 88),
            "new user namespace": refusal(call, "unshare", 0x1000_0000),
            "mount": refusal(call, "mount", b"none", b"/", b"tmpfs", 0, 0),
            "ptrace": refusal(call, "ptrace", 16, os.getppid(), 0, 0),
            "memory of the parent": refusal(call, "process_vm_readv", os.getppid(), 0, 0, 0, 0, 0),
            "limits of the parent": refusal(call, "prlimit64", os.getppid(), 7, 0, 0),
            "signal to the parent": refusal(os.kill, os.getppid(), 0),
            "signal to every process": refusal(os.kill, -1, 0),
            "network": refusal(socket.socket),
            "unix socket": refusal(socket.socket, socket.AF_UNIX),
            "datagram to a path": refusal(pair[0].sendto, b"x", "/run/docker.sock"),
            "descriptor passed": refusal(socket.send_fds, pair[0], [b"x"], [0]),
            "memory file": refusal(os.memfd_create, "x"),
            "io_uring": refusal(call, "io_uring_setup", 8, bytes(120)),
            "bpf": refusal(call, "bpf", 0, bytes(64), 64),
            "kernel timers": refusal(call, "timer_create", 1, 0, bytes(4)),
            "priority": refusal(os.nice, -1),
            "processor": refusal(os.sched_setaffinity, 0, {0}),
            "owner": refusal(os.chown, ".", 1, 1),
            "device": refusal(os.mknod, "device", 0o020644, 0),
            "privileges": refusal(call, "prctl", 38, 0, 0, 0, 0),
            "survives its parent": refusal(call, "prctl", 1, 0, 0, 0, 0),
            "higher limit": refusal(call, "prlimit64", 0, resource.RLIMIT_CORE,
                                    (1 << 40).to_bytes(8, "little") * 2, 0),
        })
        """,
        tmp_path,
        pid=True,
        signals_scoped=False,
    )

    expected = dict.fromkeys(refusals, "EPERM")
    assert refusals == {**expected, "clone3": "ENOSYS", "kernel timers": "ENOSYS"}


@needs_landlock
def test_files_outside_the_work_folder_are_protected_and_inside_they_work(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    work = tmp_path / "work"
    work.mkdir()

    results = run_behind_walls(
        f"""
        import os, pathlib, shutil, sqlite3, tempfile

        os.symlink({str(secret)!r}, "link")
        refused = [
            refusal(open, {str(secret)!r}),
            refusal(open, "../secret", "w"),
            refusal(open, "link"),
            refusal(os.listdir, ".."),
            refusal(os.link, {str(secret)!r}, "hard"),
            refusal(os.rename, "../secret", "moved"),
            refusal(os.unlink, "../secret"),
            refusal(os.truncate, "../secret", 0),
            refusal(os.mkdir, "../folder"),
            refusal(os.open, "../secret", os.O_RDONLY | os.O_TRUNC),
        ]
        folder = pathlib.Path("a/b")
        folder.mkdir(parents=True)
        (folder / "one").write_text("one")
        shutil.copy2(folder / "one", "two")
        shutil.copytree("a", "c")
        os.rename("two", folder / "two")
        os.truncate(folder / "two", 1)
        with sqlite3.connect("base") as base:
            base.execute("create table numbers as select 7 as number")
        with tempfile.TemporaryFile(dir=".") as file:
            file.write(b"x")
        report([refused, sorted(map(str, pathlib.Path().rglob("*")))])
        """,
        work,
    )

    refused, found = results
    assert refused[:5] == ["EACCES", "EACCES", "EACCES", "EACCES", "EXDEV"]
    assert refused[5:] == ["EACCES", "EACCES", "EACCES", "EACCES", "EPERM"]
    assert found == ["a", "a/b", "a/b/one", "a/b/two", "base", "c", "c/b", "c/b/one", "link"]
    assert secret.read_text() == "secret"


def test_threads_event_loops_signals_and_memory_work(tmp_path):
    results = run_behind_walls(
        """
        import asyncio, ctypes, faulthandler, mmap, os, queue, random, select, signal, socket
        import threading, time
        from concurrent.futures import ThreadPoolExecutor

        async def talk():
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours)
            theirs.sendall(b"hello\\n")
            line = await reader.readline()
            writer.write(line.upper())
            await writer.drain()
            number = await asyncio.to_thread(lambda: 42)
            await asyncio.sleep(0.001)
            return theirs.recv(10).decode(), number

        received = []
        signal.signal(signal.SIGALRM, lambda *_: received.append("alarm"))
        signal.signal(signal.SIGUSR1, lambda *_: received.append("usr1"))
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while not received:
            signal.pause()
        signal.raise_signal(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)

        with ThreadPoolExecutor(8) as pool:
            squares = sum(pool.map(lambda number: number ** 2, range(100)))
        shared = mmap.mmap(-1, 1 << 20)
        shared[:3] = b"abc"
        shared.madvise(mmap.MADV_DONTNEED, 4096, 4096)
        poll = select.epoll()
        event = os.eventfd(1)
        poll.register(event, select.EPOLLIN)
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int),
                                   ctypes.POINTER(ctypes.c_int))(lambda a, b: a[0] - b[0])
        numbers = (ctypes.c_int * 3)(3, 1, 2)
        ctypes.CDLL(None).qsort(numbers, 3, 4, compare)
        faulthandler.enable()
        report([
            asyncio.run(talk()), received, squares, len(poll.poll(1)), list(numbers),
            len(os.urandom(8)), random.Random(1).randrange(100), time.monotonic() > 0,
            refusal(os.waitpid, -1, 0), os.uname().sysname, bytes(shared[:3]).decode(),
        ])
        """,
        tmp_path,
        pid=True,
        signals_scoped=False,
    )

    assert results == [
        ["HELLO\n", 42],
        ["alarm", "usr1", "usr1"],
        328350,
        1,
        [1, 2, 3],
        8,
        17,
        True,
        "ECHILD",
        "Linux",
        "abc",
    ]


@pytest.mark.slow  # starts several sandboxes
def test_numpy_works_with_its_own_threads(tmp_path):
    pytest.importorskip("numpy")

    results = run_behind_walls(
        """
        import threading
        import numpy as np

        matrix = np.random.default_rng(0).random((300, 300))
        np.save("matrix.npy", matrix)
        mapped = np.load("matrix.npy", mmap_mode="r")
        results = []

        def invert():
            results.append(round(float(np.trace(matrix @ np.linalg.inv(matrix)))))

        threads = [threading.Thread(target=invert) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report([results, bool((mapped == matrix).all())])
        """,
        tmp_path,
        preload=["numpy"],
    )

    assert results == [[300] * 4, True]


def test_modes_and_times_of_files_stay_where_the_user_id_is_shared(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o640)
    before = outside.stat()
    work = tmp_path / "work"
    work.mkdir()

    refusals = run_behind_walls(
        f"""
        import os

        path = {str(outside)!r}
        report([refusal(os.chmod, path, 0o777), refusal(os.utime, path, (1, 1))])
        """,
        work,
        files_shared=True,
    )

    after = outside.stat()
    assert refusals == [None, None]
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
