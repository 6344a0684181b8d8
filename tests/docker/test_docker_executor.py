"""Code that runs in a container does what it does in the sandbox, and leaves nothing behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codeact_environments import CodeClient, coder, open_client
from containers import docker, exists, inspect, need_images, own_containers

import envweave as ew
from envweave.codeact import DockerExecutor
from envweave.errors import OptionError, ResetFailedError, StartupError
from envweave.sandbox import Limits

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

LIMITS: dict[str, Any] = {
    "timeout_s": 2.0,
    "grace_s": 2.0,
    "memory_bytes": 256 << 20,
    "output_bytes": 1024,
    "disk_bytes": 1 << 20,
    "message_bytes": 256 << 10,
    "tool_calls": 30,
}
PATIENT = {"timeout_s": 60.0}


@pytest.fixture(scope="module")
def built() -> None:
    need_images()


@pytest.fixture(scope="module")
def _shared(built: None) -> Iterator[CodeClient]:
    with open_client(
        "direct", executor="docker", limits=LIMITS, files=True, fatal_reward=-1.0
    ) as way:
        yield way


@pytest.fixture
def way(_shared: CodeClient) -> CodeClient:
    """A client of an environment whose code runs in a container, at the start of an episode."""
    _shared.reset(seed=7)
    return _shared


def test_variables_persist_only_within_an_episode(way: CodeClient) -> None:
    way.step("x = 20\ndef double(n):\n    return 2 * n")
    during = way.step("print('so far')\ndouble(x) + 2")
    state = way.state()
    way.reset()
    after = way.step("x")

    assert (during.value, during.execution.stdout) == (42, "so far\n")
    assert state.variables["x"] == ew.codeact.Variable("int", "20")
    assert (state.executor, state.isolation) == ("docker", "docker+landlock")
    assert after.execution.exception_type == "NameError"


def test_an_exception_is_an_observation_and_the_episode_continues(way: CodeClient) -> None:
    failed = way.step("before = 1\nbefore / 0")
    later = way.step("before")

    assert (failed.done, failed.exit_code) == (False, 1)
    assert failed.execution.exception_message == "division by zero"
    assert "before / 0" in failed.stderr
    assert later.value == 1


def test_sync_and_async_tools_run_on_the_host_and_their_calls_are_recorded(way: CodeClient) -> None:
    step = way.step("add(1, b=2), later('on')")

    assert step.value == (3, "on")
    assert [(call.name, call.value) for call in step.execution.tool_calls] == [
        ("add", 3),
        ("later", "on"),
    ]


def test_calls_that_do_not_fit_are_refused_and_all_are_counted(way: CodeClient) -> None:
    wrong = way.step("add('one', 2)")
    many = way.step("for _ in range(50): add(1, 1)")
    after = way.step("add(2, 2)")

    assert "argument a" in wrong.execution.exception_message
    assert many.limits_hit == ("tool_calls",)
    assert after.value == 4


def test_file_tools_and_code_see_the_same_files_of_one_episode(way: CodeClient) -> None:
    way.step("file_write('notes/a.txt', 'kept'); open('b.txt', 'w').write('too')")
    seen = way.step("open('notes/a.txt').read(), file_read('b.txt'), sorted(file_list())")
    way.reset()
    after = way.step(
        "file_exists('b.txt'), os.path.exists('b.txt')".replace("os", "__import__('os')")
    )

    assert seen.value == ("kept", "too", ["b.txt", "notes/", "tmp/"])
    assert after.value == (False, False)


def test_large_values_pass_in_both_directions(way: CodeClient) -> None:
    text = "y" * 100_000

    out = way.step(f"kept = {text!r}\nkept * 2")
    through = way.step("len(later(kept))")
    beyond = way.step("kept * 3")

    assert out.value == text * 2
    assert through.value == len(text)
    assert (beyond.value, beyond.execution.success) == (None, True)


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_a_seed_gives_the_same_numbers_as_in_the_sandbox_and_in_python(
    way: CodeClient, seed: int
) -> None:
    code = "import numpy\n[random.random(), float(numpy.random.rand()), list({'a', 'b', 'c'})]"
    way.reset(seed=seed)
    inside = way.step(code)
    with open_client("direct", limits=PATIENT) as other:
        other.reset(seed=seed)
        here = other.step(code)

    assert inside.value == here.value
    assert inside.value[0] == random.Random(seed).random()


@pytest.mark.parametrize(
    ("code", "limit", "exit_code"),
    [
        ("while True: pass", "time", 124),
        ("time.sleep(60)", "time", 124),
        ("bytearray(1 << 30)", "memory", 1),
        ("open('big', 'wb').write(b'x' * (4 << 20))", "disk", 1),
        ("print('x' * 5000)", "output", 0),
    ],
)
def test_an_exceeded_limit_is_named_and_the_episode_continues(
    way: CodeClient, code: str, limit: str, exit_code: int
) -> None:
    way.step("kept = 1")

    step = way.step(code)
    after = way.step("kept")

    assert step.limits_hit == (limit,)
    assert (step.done, step.exit_code) == (False, exit_code)
    assert after.value == 1


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        ("import os; os._exit(3)", "error", "exited with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "error", "SIGKILL"),
        (
            "while True:\n try:\n  while True: time.sleep(1)\n except BaseException: 0",
            "timeout",
            "did not stop within another 2 s",
        ),
        (
            "for n in range(40): open(str(n), 'wb').write(b'x' * (64 << 10))\ntime.sleep(60)",
            "error",
            "more disk",
        ),
    ],
)
def test_code_that_ends_its_session_is_to_blame_and_the_container_continues(
    way: CodeClient, code: str, reason: str, cause: str
) -> None:
    last = way.step(code)
    way.reset()
    after = way.step("1 + 1")

    assert last.end is not None
    assert (last.end["reason"], last.end["blame"]) == (reason, "agent")
    assert cause in last.end["cause"]
    assert (last.reward, last.execution.session_ended) == (-1.0, True)
    assert after.value == 2


FORGERY = """
import os, sys
forged = b"\\x05\\x00\\x00\\x00" + bytes([0x93, 6, 1, 0, 0]) + b"\\xff" * 64
for stream in (1, 2):
    os.write(stream, forged)
sys.__stdout__.buffer.write(forged); sys.__stdout__.flush()
refused = []
for path in ("/proc/1/fd/1", "/proc/1/fd/4", "/proc/self/fd/1", "/dev/stdout", "/dev/console"):
    try:
        with open(path, "wb", buffering=0) as file: file.write(forged)
    except OSError as error:
        refused.append((path, type(error).__name__))
refused
"""


def test_output_of_code_cannot_reach_the_channel_to_the_host(way: CodeClient) -> None:
    printed = way.step(FORGERY)
    after = way.step("1 + 1")

    assert not printed.done
    assert [path for path, _ in printed.value][:2] == ["/proc/1/fd/1", "/proc/1/fd/4"]
    assert after.value == 2


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
        "import socket; socket.create_connection(('172.17.0.1', 22), 2)",
        "import os; os.kill(1, 9)",
        "import os; os.listdir('/opt')",
        "import subprocess; subprocess.run(['true'])",
    ],
)
def test_code_has_no_network(way: CodeClient, code: str) -> None:
    step = way.step(code)

    assert step.execution.exception_type in ("PermissionError", "OSError", "BlockingIOError")


def test_the_container_has_minimal_privileges(built: None) -> None:
    executor = DockerExecutor(limits=Limits(memory_bytes=64 << 20, processes=8), cpus=0.5)
    with ew.create_codeact_env(executor=executor) as env:
        env.reset()
        about = inspect(str(executor.container))

    host = about["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["LogConfig"]["Type"] == "none"
    assert host["Memory"] == host["MemorySwap"] < 512 << 20
    assert (host["PidsLimit"], host["CpuQuota"]) == (72, 50_000)
    assert not host["Binds"]
    assert int(about["Config"]["User"].split(":")[0]) >= 20_000


@pytest.mark.parametrize("command", ["kill", "rm"])
def test_a_container_that_is_lost_ends_the_episode_and_the_next_has_another(
    built: None, command: str
) -> None:
    executor = DockerExecutor(limits=Limits(timeout_s=120.0))
    started = threading.Event()
    env = ew.create_codeact_env(executor=executor, tools={"started": started.set})
    with ew.make(env) as env:
        env.reset()
        first = str(executor.container)
        force = ["rm", "-f", first] if command == "rm" else ["kill", first]
        killer = threading.Thread(target=lambda: (started.wait(60), docker(*force)))
        killer.start()
        lost = env.step({"code": "started(); time.sleep(100)"})
        killer.join()
        env.reset()
        after = env.step({"code": "1 + 1"})
        second = str(executor.container)

    assert lost.end is not None
    assert (lost.end.reason, lost.end.blame) == ("lost", "infrastructure")
    assert first in lost.end.cause
    assert ("removed" if command == "rm" else "exited with code 137") in lost.end.cause
    assert after.observation.execution_result.return_value == 2
    assert second != first
    assert not exists(first)
    assert not exists(second)


def test_a_container_that_was_lost_between_episodes_is_replaced(built: None) -> None:
    executor = DockerExecutor()
    with ew.create_codeact_env(executor=executor) as env:
        env.reset()
        docker("rm", "-f", str(executor.container))
        env.reset()

        assert env.step({"code": "6 * 7"}).execution_result.return_value == 42


def test_closing_leaves_no_container_thread_or_descriptor(built: None) -> None:
    def count_sockets() -> int:
        found = [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return sum(str(one.readlink()).startswith("socket:") for one in found)

    with ew.create_codeact_env() as env:  # what a process opens once and for all
        env.reset()
    threads = set(threading.enumerate())
    sockets = count_sockets()
    executor = DockerExecutor()
    env = ew.create_codeact_env(executor=executor)
    env.reset()
    env.step({"code": "1"})
    name = str(executor.container)
    was_there = exists(name)

    env.close()

    assert was_there
    assert not exists(name)
    assert {one for one in threading.enumerate() if one.name == "envweave-container"} <= threads
    assert count_sockets() == sockets


def test_without_walls_inside_each_episode_has_a_container_of_its_own(built: None) -> None:
    executor = DockerExecutor(isolation="none", limits=Limits(**PATIENT))
    with ew.create_codeact_env(executor=executor) as env:
        env.reset()
        env.step({"code": "open('/tmp/left', 'w').write('here')"})
        tried = env.step({"code": "import os; os.kill(1, 9); os.listdir('/proc/1/fd')"})
        first, isolation = executor.container, env.state.isolation
        env.reset()
        after = env.step({"code": "import os; os.path.exists('/tmp/left')"})

        assert isolation == "docker+none"
        assert tried.execution_result.exception_type == "PermissionError"
        assert after.execution_result.return_value is False
        assert executor.container != first
        assert not exists(str(first))


@pytest.mark.parametrize("name", ["make", "async", "served"])
def test_it_works_with_every_client(built: None, name: str) -> None:
    with open_client(name, executor="docker", limits=PATIENT) as way:
        way.reset(seed=3)
        step = way.step("add(20, 22), later('on'), random.random()")

    assert list(step.value) == [42, "on", random.Random(3).random()]


def test_the_coding_environment_runs_python_and_a_shell_there(built: None) -> None:
    with ew.make("coding-v0", executor="docker", limits=PATIENT) as env:
        env.reset()
        python = env.step({"code": "print(6 * 7)"}).observation
    with ew.make("coding-v0", executor="docker", profile="shell", limits=PATIENT) as env:
        env.reset()
        env.step({"code": "cd /tmp; name=world"})
        shell = env.step({"code": "echo hello $name; cat /etc/shadow"}).observation
        isolation = env.state().isolation

    assert (python.stdout, python.exit_code) == ("42\n", 0)
    assert shell.stdout == "hello world\n"
    assert "Permission denied" in shell.stderr
    assert isolation == "docker+landlock"


def test_orphaned_processes_are_reaped(built: None) -> None:
    code = "import subprocess\nfor _ in range(200): subprocess.run(['sh', '-c', 'true &'])\n'done'"
    limits = Limits(timeout_s=100.0, processes=16)
    with ew.create_codeact_env(executor=DockerExecutor(profile="shell", limits=limits)) as env:
        env.reset()

        assert env.step({"code": code}).execution_result.return_value == "done"


def test_files_of_this_machine_cannot_be_seen(built: None) -> None:
    with pytest.raises(OptionError, match="sees no files of this machine"):
        coder(executor="docker", visible=["/etc"])


def test_a_missing_image_is_reported_at_once(built: None) -> None:
    with pytest.raises(StartupError, match="no image 'never-built:latest'"):
        DockerExecutor(image="never-built:latest")


def test_an_unreachable_engine_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="does not answer"):
        DockerExecutor(docker_host=f"unix://{tmp_path}/docker.sock")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "envweave-python:3.11"}, "must contain envweave.* No module named 'envweave'"),
        ({"preload": ["no_such_module"]}, "there is no module 'no_such_module'"),
        ({"isolation": "namespace"}, "does not support Sandbox"),
    ],
)
def test_a_failed_start_is_reported_and_leaves_nothing_running(
    built: None, options: dict[str, Any], message: str
) -> None:
    before = own_containers()
    with (
        ew.create_codeact_env(executor=DockerExecutor(**options)) as env,
        pytest.raises(ResetFailedError, match=message),
    ):
        env.reset()

    assert own_containers() == before


def test_an_invalid_option_is_refused() -> None:
    for options in ({"image": " "}, {"cpus": 0}, {"isolation": "wall"}, {"profile": "zsh"}):
        with pytest.raises(OptionError):
            DockerExecutor(**options)  # type: ignore[arg-type]
