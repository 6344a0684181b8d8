"""The terminal environment: commands of one shell, which lasts as long as the episode."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

import envweave as ew
from envweave.envs.coding_env import CodeAction, CodeObservation, CodingEnvironment
from envweave.errors import IsolationError

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

Run = Callable[..., CodeObservation]
PATIENT = {"timeout_s": 60, "grace_s": 5}
HASTY = {"timeout_s": 0.5, "grace_s": 0.5}


@pytest.fixture(scope="module", params=["namespace", "landlock"])
def terminal(request: pytest.FixtureRequest) -> Iterator[ew.Env]:
    """A terminal with time, behind the walls of each tier."""
    try:
        env = ew.make(CodingEnvironment, profile="shell", isolation=request.param, limits=PATIENT)
    except IsolationError as error:
        pytest.skip(str(error))
    with env:
        yield env


@pytest.fixture
def run(terminal: ew.Env) -> Run:
    """Runs commands in an episode of its own, and returns what the last came to."""
    terminal.reset(seed=7)

    def run(*commands: str) -> CodeObservation:
        for command in commands:
            shown: CodeObservation = terminal.step(CodeAction(command)).observation
        return shown

    return run


@pytest.fixture(scope="module")
def hasty() -> Iterator[ew.Env]:
    """A terminal with little time."""
    try:
        env = ew.make(CodingEnvironment, profile="shell", isolation="namespace", limits=HASTY)
    except IsolationError as error:
        pytest.skip(str(error))
    with env:
        yield env


@pytest.fixture
def run_in_haste(hasty: ew.Env) -> Callable[[str], CodeObservation]:
    hasty.reset()
    return lambda command: hasty.step(CodeAction(command)).observation


def summary(shown: CodeObservation) -> tuple[str, str, int]:
    return shown.stdout, shown.stderr, shown.exit_code


def test_stdout_stderr_and_status_are_separate(run: Run) -> None:
    shown = run("echo out; echo err >&2; (exit 7)")

    assert summary(shown) == ("out\n", "err\n", 7)
    assert shown.result is None
    assert shown.code == "echo out; echo err >&2; (exit 7)"


def test_folder_variables_environment_functions_and_aliases_persist(run: Run) -> None:
    shown = run(
        "mkdir -p src/deep && cd src/deep && touch a b",
        "count=2; export SEEN=yes",
        "greet() { echo \"hello $1\"; }; alias both='greet a; greet b'",
        "both; ls | wc -l; echo $count; sh -c 'echo $SEEN'; basename $PWD",
    )

    assert summary(shown) == ("hello a\nhello b\n2\n2\nyes\ndeep\n", "", 0)


def test_a_reset_clears_everything(terminal: ew.Env, run: Run) -> None:
    run("left=behind; cd /; echo x > ~/file")

    terminal.reset()

    assert summary(run("echo [$left]; ls; [ $PWD = ~ ]")) == ("[]\ntmp\n", "", 0)


def test_the_status_of_the_last_command_is_known_to_the_next(run: Run) -> None:
    assert run("(exit 41)", "echo $?").stdout == "41\n"
    assert run("true", "echo $?").stdout == "0\n"


def test_the_status_is_in_the_state(terminal: ew.Env, run: Run) -> None:
    run("(exit 9)")

    state = terminal.state()

    assert (state.last_exit_code, state.executor, state.step_count) == (9, "terminal", 1)


def test_a_command_that_reads_finds_an_empty_input(run: Run) -> None:
    shown = run("cat; read line; echo $? [$line]; python3 -c 'print(repr(input()))'")

    assert shown.stdout == "1 []\n"
    assert "EOFError" in shown.stderr
    assert shown.exit_code == 1


def test_a_here_document_and_a_script_of_many_lines(run: Run) -> None:
    shown = run(
        "cat > add.py <<'END'\nimport sys\nprint(sum(map(int, sys.argv[1:])))\nEND\n"
        'for n in 1 2 3; do\n  total=$(python3 add.py $n ${total:-0})\ndone\necho "it\'s $total"'
    )

    assert summary(shown) == ("it's 6\n", "", 0)


def test_a_large_command_arrives_whole(run: Run) -> None:
    text = "äx'\"$" * 60_000

    shown = run(f"cat > big <<'END'\n{text}\nEND\nwc -c < big")

    assert summary(shown) == (f"{len(text.encode()) + 1}\n", "", 0)


@pytest.mark.parametrize(
    "bad", ["echo 'open", 'echo "open', "if true; then", "echo $(", ")", "a () {"]
)
def test_a_syntax_error_is_reported_and_the_shell_continues(run: Run, bad: str) -> None:
    shown = run("kept=1", bad)

    assert shown.exit_code != 0
    assert shown.stderr.startswith("bash: ")
    assert summary(run("echo $kept")) == ("1\n", "", 0)


@pytest.mark.parametrize("bad", ["set -u; echo $missing", "echo ${missing:?no}"])
def test_an_error_that_ends_a_script_does_not_end_the_shell(run: Run, bad: str) -> None:
    shown = run("kept=1", f"{bad}; echo not here")

    assert shown.stdout == ""
    assert shown.exit_code != 0
    assert run("set +u; echo $kept").stdout == "1\n"


@pytest.mark.parametrize(
    "change",
    ["PS1='prompt> '; PS2='more> '", "set -v", "set -o posix", "trap 'x=1' DEBUG", "IFS=0"],
)
def test_only_the_output_of_the_command_is_shown(run: Run, change: str) -> None:
    run(change)

    assert run("echo one\necho two").stdout == "one\ntwo\n"


@pytest.mark.slow  # starts several sandboxes
def test_a_trace_shows_only_the_command(run: Run) -> None:
    assert run("set -x", "echo one").stderr == "++ echo one\n"


def test_a_program_that_a_signal_ends_has_the_status_of_that(run: Run) -> None:
    shown = run("python3 -c 'import os; os.kill(os.getpid(), 9)'")

    assert (shown.exit_code, shown.stdout) == (137, "")
    assert "tcsetattr" not in shown.stderr


def test_invalid_utf8_bytes_are_escaped(run: Run) -> None:
    assert run(r"printf 'a\xff\xc3\n\0b'").stdout == "a\\xff\\xc3\n\0b"


def test_a_background_job_continues_and_its_output_appears_later(run: Run) -> None:
    run("mkfifo go; (read < go; echo late; echo oops >&2) & job=$!")

    shown = run("echo > go; wait $job; echo done $?")

    assert sorted(shown.stdout.splitlines()) == ["done 0", "late"]
    assert shown.stderr.splitlines() == ["oops"]


def test_output_beyond_the_limit_is_truncated_and_the_command_continues(run: Run) -> None:
    shown = run("head -c 3000000 /dev/zero | tr '\\0' x; touch finished; echo end >&2")

    assert shown.stdout == "x" * 65536 + f"\n... [{3_000_000 - 65536} bytes cut]"
    assert (shown.stderr, shown.exit_code, shown.limits_hit) == ("end\n", 0, ["output"])
    assert run("ls").stdout == "finished\ntmp\n"


def test_exit_ends_the_shell_and_another_begins(run: Run) -> None:
    run("x=1; cd /; echo kept > ~/file")

    shown = run("exit 3")

    assert shown.exit_code == 3
    assert "[shell] The shell exited with status 3. A new one was started" in shown.stderr
    assert summary(run("echo [$x] $?; cat file")) == ("[] 0\nkept\n", "", 0)


def test_a_shell_that_stops_at_errors_ends_by_one(run: Run) -> None:
    shown = run("set -e", "echo before; false; echo after")

    assert (shown.stdout, shown.exit_code) == ("before\n", 1)
    assert "The shell exited with status 1" in shown.stderr
    assert run("echo on").stdout == "on\n"


def test_python_and_the_tools_of_a_terminal_run(run: Run) -> None:
    shown = run(
        "python3 -c 'import numpy; print(numpy.arange(3).sum())' && seq 9 | sort -r | head -1"
    )

    assert summary(shown) == ("3\n9\n", "", 0)


def test_random_numbers_of_the_shell_follow_the_seed(terminal: ew.Env, run: Run) -> None:
    drawn = []
    for seed in (1, 1, 2):
        terminal.reset(seed=seed)
        drawn.append(run("echo $RANDOM $RANDOM").stdout)

    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    "endless",
    [
        "while :; do :; done",
        "sleep 600; echo not here",
        "while true; do sleep 0.01; done",
        "x=$(sleep 600)",
        "sleep 600 | cat",
        "python3 -c 'while True: pass'",
    ],
)
def test_an_endless_command_is_interrupted_and_the_shell_continues(
    run_in_haste: Callable[[str], CodeObservation], endless: str
) -> None:
    run_in_haste("kept=1")

    shown = run_in_haste(f"echo begun; {endless}")

    assert (shown.stdout, shown.exit_code, shown.limits_hit) == ("begun\n", 124, ["time"])
    assert "[shell] The command took longer than 0.5 s, and was interrupted." in shown.stderr
    assert run_in_haste("echo $kept").stdout == "1\n"


@pytest.mark.slow  # waits for a deadline
@pytest.mark.parametrize(
    "stubborn",
    [
        "trap '' INT; while :; do :; done",
        *(  # each waits for a second
            pytest.param(command, marks=pytest.mark.slow)
            for command in ("setsid sleep 600", "kill -STOP $$", "set -m; sleep 600")
        ),
    ],
)
def test_a_command_that_ignores_interrupts_is_killed_with_the_shell(
    run_in_haste: Callable[[str], CodeObservation], stubborn: str
) -> None:
    run_in_haste("lost=1; touch kept")

    shown = run_in_haste(stubborn)

    assert (shown.exit_code, shown.limits_hit) == (124, ["time"])
    assert "was killed with all other processes here" in shown.stderr
    assert summary(run_in_haste("echo [$lost]; ls")) == ("[]\nkept\ntmp\n", "", 0)


@pytest.mark.slow  # starts several sandboxes
def test_where_it_cannot_be_killed_alone_the_session_ends() -> None:
    try:
        env = ew.make(CodingEnvironment, profile="shell", isolation="landlock", limits=HASTY)
    except IsolationError as error:
        pytest.skip(str(error))
    with env:
        env.reset()
        result = env.step(CodeAction("trap '' INT; while :; do :; done"))

    assert result.done
    assert (result.end.reason, result.end.blame) == ("timeout", "agent")
    assert (result.observation.exit_code, result.observation.limits_hit) == (124, ["time"])
