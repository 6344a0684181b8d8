"""The command as a process: signals, pipes, imports, encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{name!r}] = None
from envweave.cli import main
sys.exit(main())
"""

IMPORTED = """
import sys
from envweave.cli import main
code = main(["--help"])
heavy = {"numpy", "msgspec", "gymnasium", "pettingzoo", "matplotlib"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy or code else 0)
"""

WAITING = """
import sys
import time

import envweave as ew


class WaitingEnv(ew.Environment):
    def reset(self):
        sys.stderr.write("waiting\\n")
        sys.stderr.flush()
        time.sleep(60)

    def step(self, action: bool):
        return 0, 1.0, True, False, {}

    def close(self):
        sys.stderr.write("closed\\n")
"""

TALKATIVE = '''
import envweave as ew


class TalkativeEnv(ew.Environment):
    """Sagt „schön“ \\u2713."""

    def reset(self):
        return 0

    def step(self, action: bool):
        return 0, 1.0, True, False, {}
'''


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_without_its_extra_the_command_prints_how_to_install_it(process, name):
    ran = process("list", code=WITHOUT.format(name=name))

    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr == (
        "The envweave command needs its extra. Install it with: pip install 'envweave[cli]'\n"
    )


@pytest.mark.slow  # starts the command line anew
def test_help_imports_nothing_heavy(process):
    ran = process(code=IMPORTED)

    assert (ran.code, ran.stderr) == (0, "")


@pytest.mark.slow  # starts the command line anew
def test_the_installed_script_finds_modules_of_the_current_directory(here):
    (here / "talkative_env.py").write_text(TALKATIVE)
    script = [sys.executable, "-c", "import sys; sys.path.remove(''); from envweave.cli import "]
    script[-1] += "main; sys.exit(main())"

    ran = subprocess.run(
        [*script, "run", "pkg://talkative_env:TalkativeEnv", "--episodes", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert json.loads(ran.stdout)["summary"]["mean_return"] == 1.0


@pytest.mark.slow  # starts the command line anew
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_ends_it_quietly_and_closes_the_environment(here):
    (here / "waiting_env.py").write_text(WAITING)
    with subprocess.Popen(
        [sys.executable, "-m", "envweave.cli", "run", "pkg://waiting_env:WaitingEnv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "waiting\n"

        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)

    assert (running.returncode, stdout, stderr) == (130, "", "closed\n")


@pytest.mark.slow  # starts the command line anew
@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--help"]])
def test_a_closed_output_pipe_is_not_an_error(here, arguments):
    reading, writing = os.pipe()
    os.close(reading)

    ran = subprocess.run(
        [sys.executable, "-m", "envweave.cli", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)

    assert ran.stderr == ""


@pytest.mark.slow  # starts the command line anew
def test_a_stream_without_unicode_gets_plain_letters(process, here):
    (here / "talkative_env.py").write_text(TALKATIVE)

    ran = process("check", "pkg://talkative_env:TalkativeEnv", PYTHONIOENCODING="ascii")
    output = process("info", "pkg://talkative_env:TalkativeEnv", PYTHONIOENCODING="ascii")

    assert ran.code == 0
    assert "ok | A step before the first reset is refused" in ran.text
    assert "\\u2713" in output.text


@pytest.mark.slow  # starts the command line anew
def test_no_colours_go_into_a_pipe(process):
    ran = process("list")

    assert "\x1b" not in ran.stdout


@pytest.mark.slow  # starts the command line anew
def test_colours_can_be_forced_and_forbidden(process):
    forced = process("info", "countr-v0", FORCE_COLOR="1")
    forbidden = process("info", "countr-v0", FORCE_COLOR="1", NO_COLOR="1")

    assert "\x1b[1;31mError" in forced.stderr
    assert "\x1b[1;31m" not in forbidden.stderr
