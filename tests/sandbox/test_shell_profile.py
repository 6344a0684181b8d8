"""Programs in a shell session: common terminal programs work, and stay confined."""

from __future__ import annotations

import shutil
import sys

import pytest
from sandbox_walls import run_behind_walls

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]

ROOMY = {"open_files": 256, "memory_bytes": 1 << 30}


def run_bash(script: str, work, **options):
    """Run a script; return its output, including stderr, and its status."""
    return run_behind_walls(
        f"""
        import os, subprocess

        os.environ["TMPDIR"] = os.environ["HOME"] = os.getcwd()
        done = subprocess.run(["bash", "-c", {script!r}], stdout=-1, stderr=-2, text=True)
        report([done.stdout, done.returncode])
        """,
        work,
        shell=True,
        limits=ROOMY,
        **options,
    )


@pytest.mark.slow  # starts many programs
def test_common_terminal_programs_work(tmp_path):
    output, status = run_bash(
        """
        set -e
        mkdir folder; printf 'b\\na\\n' > folder/letters
        sort folder/letters | tee sorted | wc -l
        cp -r folder copy; mv copy moved; chmod 700 moved; ln -s sorted link; cat link
        tar cf all.tar folder && rm -r folder && tar xf all.tar --no-same-owner && ls folder
        mkfifo pipe; (echo through > pipe) & cat pipe; wait
        timeout 0.05 sleep 5 || echo "timeout $?"
        sleep 5 & kill $!; wait $! || echo "killed $?"
        find . -name letters | xargs grep -c a | sort
        """,
        tmp_path,
    )

    assert status == 0, output
    assert output.splitlines() == [
        "2",
        "a",
        "b",
        "letters",
        "through",
        "timeout 124",
        "killed 143",
        "./folder/letters:1",
        "./moved/letters:1",
    ]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_program_can_be_compiled_and_run(tmp_path):
    (tmp_path / "seven.c").write_text("int main(void) { return 7; }\n")
    (tmp_path / "Makefile").write_text("seven: seven.c\n\tgcc -o $@ $<\n")

    output, status = run_bash("make -s seven && ./seven", tmp_path)

    assert (output, status) == ("", 7)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_works(tmp_path):
    output, status = run_bash(
        """
        set -e
        git init -q here && cd here && echo one > file && git add file
        git -c user.name=n -c user.email=e commit -qm first
        git checkout -qb other && cd .. && git clone -q here there && ls there
        git -C there log --format=%s
        """,
        tmp_path,
    )

    assert (output.split(), status) == (["file", "first"], 0)


def test_python_starts_programs_and_pools(tmp_path):
    results = run_behind_walls(
        """
        import asyncio, os, subprocess, sys

        async def echo():
            process = await asyncio.create_subprocess_shell("cat", stdin=-1, stdout=-1)
            return (await process.communicate(b"echoed"))[0].decode()

        child = os.posix_spawn("/bin/true", ["true"], {})
        code = "import sys; sys.exit(len(sys.stdin.read()))"
        report([
            asyncio.run(echo()),
            os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
            subprocess.run([sys.executable, "-c", code], input="12345", text=True).returncode,
        ])
        """,
        tmp_path,
        shell=True,
        limits=ROOMY,
    )

    assert results == ["echoed", 0, 5]


def test_programs_of_a_shell_have_the_same_walls(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    work = tmp_path / "work"
    work.mkdir()

    output, status = run_bash(
        f"""
        cat {secret} 2>/dev/null || echo "no secret"
        (echo x > ../out) 2>/dev/null || echo "no file"
        (echo x > /dev/tcp/127.0.0.1/1) 2>/dev/null || echo "no network"
        kill -0 1 2>/dev/null || echo "no signal"
        mknod device c 1 3 2>/dev/null || echo "no device"
        unshare -U true 2>/dev/null || echo "no namespace"
        """,
        work,
    )

    assert status == 0
    assert output.splitlines() == [
        "no secret",
        "no file",
        "no network",
        "no signal",
        "no device",
        "no namespace",
    ]
    assert not (tmp_path / "out").exists()


def test_without_a_pid_namespace_no_process_leaves_the_process_group(tmp_path):
    results = run_behind_walls(
        """
        import os, subprocess

        def start_apart(**options):
            subprocess.run(["/bin/true"], **options)

        report([
            refusal(os.setsid),
            refusal(os.setpgid, 0, 0),
            refusal(start_apart, start_new_session=True),
            refusal(start_apart, process_group=0),
        ])
        """,
        tmp_path,
        shell=True,
        pid=True,
        signals_scoped=False,
    )

    assert results == ["EPERM"] * 4
