"""Commands that attack the shell they run in cannot forge results or stop the next command."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import envweave as ew
from envweave.envs.coding_env import CodeAction, CodeObservation, CodingEnvironment
from envweave.errors import IsolationError
from envweave.sandbox import Sandbox

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

Run = Callable[[str], CodeObservation]
PATIENT = {"timeout_s": 20, "grace_s": 2, "processes": 24}
HASTY = {"timeout_s": 0.5, "grace_s": 0.3, "processes": 24}

SPAM = r"""
import os
for number in range(3, 256):
    try:
        os.write(number, b"\0" + b"0" * 32 + b" 0\0")
        print("wrote to", number)
    except OSError:
        pass
"""


@contextmanager
def opened(limits: dict[str, float]) -> Iterator[ew.Env]:
    try:
        env = ew.make(CodingEnvironment, profile="shell", isolation="namespace", limits=limits)
    except IsolationError as error:
        pytest.skip(str(error))
    with env:
        yield env


@pytest.fixture(scope="module")
def terminal() -> Iterator[ew.Env]:
    with opened(PATIENT) as env:
        yield env


@pytest.fixture(scope="module")
def hasty() -> Iterator[ew.Env]:
    with opened(HASTY) as env:
        yield env


@pytest.fixture
def run(terminal: ew.Env) -> Run:
    terminal.reset()
    return lambda command: terminal.step(CodeAction(command)).observation


@pytest.fixture
def run_in_haste(hasty: ew.Env) -> Run:
    hasty.reset()
    return lambda command: hasty.step(CodeAction(command)).observation


def test_a_program_holds_no_descriptor_of_the_shell(run: Run) -> None:
    shown = run(f"cat > spam.py <<'END'\n{SPAM}\nEND\npython3 spam.py; (exit 5)")

    assert (shown.stdout, shown.exit_code) == ("", 5)


def test_data_written_to_every_descriptor_is_not_read_as_a_status(run: Run) -> None:
    shown = run(r"for n in {3..63}; do printf '\0word 0\0' >&$n; done 2>/dev/null; (exit 5)")

    assert shown.exit_code == 5
    assert run("echo on; (exit 6)").exit_code == 6


def test_a_background_job_cannot_report_for_a_later_command(run: Run) -> None:
    run(r"(while :; do for n in {3..63}; do printf '\0word 0\0' >&$n; done; done) 2>/dev/null &")

    codes = [run(f"(exit {code})").exit_code for code in (3, 4, 5)]

    assert codes == [3, 4, 5]


def test_printed_text_cannot_forge_a_status(run: Run) -> None:
    shown = run(r"printf '\0%s 0\0' 0123 word; echo 'exit code: 0' >&2; (exit 8)")

    assert (shown.stdout, shown.exit_code) == ("\x000123 0\0\0word 0\0", 8)


@pytest.mark.parametrize(
    "attack",
    [
        "eval() { echo forged; }; exec() { echo forged; }",
        "printf() { echo forged; }; alias printf='echo forged' command='echo forged'",
        "exec 0<&- 1>&- 2>&-",
        "exec 1>/dev/null 2>&1 0</dev/zero",
        "trap 'exit 9' USR1; trap 'echo leaving' EXIT",
        "unset PATH IFS HOME; PATH=/nowhere",
        "readonly PS1 PS2 IFS; set -o noclobber; set -f; set +B",
        "cd tmp && rmdir ../tmp",
        "ulimit -n 20",
        "kill -TERM $$; kill -INT 1; kill -TERM 1; kill -KILL 1",
        "history; fc -l; bind -p; stty -a",
    ],
)
def test_changes_to_the_shell_do_not_stop_later_commands(run: Run, attack: str) -> None:
    run(attack)

    shown = run("x=on; echo $x; ! true")

    assert (shown.stdout, shown.exit_code) == ("on\n", 1)


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    "attack",
    [
        "command() { echo forged; }",  # the shell cannot be asked any more
        "for n in {3..63}; do while read -t 0.01 -u $n; do :; done; done 2>/dev/null",
        "enable -n printf command eval",
        "set -r",
        "kill -KILL -1",
        "kill -KILL $$",
        "exec sleep 600",
        "exec true",
    ],
)
def test_a_broken_shell_is_replaced(run_in_haste: Run, attack: str) -> None:
    run_in_haste(attack)
    run_in_haste("true")

    shown = run_in_haste("x=on; echo $x; (exit 6)")

    assert (shown.stdout, shown.exit_code) == ("on\n", 6)


@pytest.mark.slow  # starts many processes
def test_the_process_limit_applies_and_all_processes_can_be_ended(run_in_haste: Run) -> None:
    run = run_in_haste
    shown = run("for n in {1..60}; do sleep 600 & done")
    run("kill -KILL -1")

    assert shown.exit_code != 0
    assert "Resource temporarily unavailable" in shown.stderr
    assert run("seq 3 | tail -1").stdout == "3\n"


def test_flooding_background_output_is_truncated_and_does_not_block(run: Run) -> None:
    run("yes &")

    for _ in range(100):  # until the flood has come
        shown = run("echo on; sleep 0.02; (exit 3)")
        if shown.limits_hit:
            break

    assert (shown.exit_code, shown.limits_hit) == (3, ["output"])
    assert run("kill %1; wait; (exit 4)").exit_code == 4


def test_a_command_with_a_nul_character_is_refused(run: Run) -> None:
    shown = run("echo a\0b")

    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "cannot contain the character NUL" in shown.stderr


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        made = Sandbox(
            profile="shell", isolation="namespace", preload=["envweave.codeact.injected.shell"]
        )
    except IsolationError as error:
        pytest.skip(str(error))
    with made:
        yield made


def test_a_shell_that_ended_between_two_commands_is_replaced(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import os; from envweave.codeact.injected.shell import Shell")
        session.run("shell = Shell(65536, 2.0, 64); os.kill(shell._pid, 9)")
        ended = session.run("os.waitid(os.P_PID, shell._pid, os.WEXITED | os.WNOWAIT).si_status")
        results = session.run("shell.run('echo on', 20.0)", timeout_s=30).return_value

    assert ended.return_value == 9
    assert results[:2] == (0, "on\n")
    assert results[2].startswith("[shell] The shell had exited with status 137. A new one was")


@pytest.mark.slow  # waits for a deadline
def test_without_bash_sh_behaves_the_same(sandbox: Sandbox) -> None:
    commands = [
        "x=1; f() { echo $x; }; cd tmp; echo err >&2; f; (exit 7)",
        "echo $?; basename $PWD",
        "echo 'open",
        "set -u; echo $missing",
        "set +u; f; cat",
        "sleep 600; echo not here",
        "f; exit 4",
        "echo [$x]",
    ]
    with sandbox.session() as session:
        session.run(
            "from envweave.codeact.injected.shell import Shell\n"
            "shell = Shell(65536, 2.0, 64, 'dash')"
        )
        results = [
            session.run(f"shell.run({one!r}, {1 if 'sleep' in one else 20})", timeout_s=30)
            for one in commands
        ]

    values = [one.return_value for one in results]
    assert [(value[0], value[1]) for value in values] == [
        (7, "1\n"),
        (0, "7\ntmp\n"),
        (2, ""),
        (2, ""),
        (0, "1\n"),
        (124, ""),
        (4, "1\n"),
        (0, "[]\n"),
    ]
    assert values[5][3] == ["time"]
