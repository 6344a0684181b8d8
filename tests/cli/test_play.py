"""`envweave play`: an environment played by hand, with lines from standard input."""

import io
import json
import subprocess
import sys

import pytest

SOURCE = """
from dataclasses import dataclass, field
from typing import Annotated, Literal
import enum
import numpy as np
import envweave as ew


class Pace(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass
class Point:
    x: float
    y: float = 0.5


@dataclass
class Everything(ew.Action):
    pace: Pace
    count: Annotated[int, ew.Bounds(0, 9)]
    sure: bool
    at: Point
    name: str
    code: str
    weights: list[float] = field(default_factory=list)
    mood: Literal["calm", "cross"] = "calm"


@dataclass
class Seen(ew.Observation):
    text: str


class Form(ew.Environment):
    def reset(self) -> Seen:
        return Seen("fill in the form")

    def step(self, action: Everything) -> Seen:
        at = (action.at.x, action.at.y)
        text = f"{action.pace} {action.count} {action.sure} {at} {action.name!r} {action.code!r}"
        return Seen(f"{text} {action.weights} {action.mood}", reward=1.0, done=True)


class Stubborn(ew.Environment):
    def reset(self, *, seed: int | None = None):
        return "say please", {}

    def step(self, action: str):
        if action != "please":
            raise ew.errors.ActionError(f"{action!r} is not polite")
        return "thanks", 2.0, True, False, {"reward_parts": {"manners": 3.0, "cost": -1.0}}


class Hostile(ew.Environment):
    def reset(self):
        self.emit(ew.LogEvent("\\x1b]0;title\\x07boo", "warning"))
        return "\\x1b[31mred\\x1b[0m\\x00", {}

    def step(self, action: bool):
        raise RuntimeError("it came apart")


class Asks(ew.Environment):
    def reset(self):
        return "?", {}

    def step(self, action: bool):
        self.emit(ew.ToolCallRequest("1", "search", {"words": "odes"}))
        return "wait", None, False, False, {}

    def answer(self, result):
        return f"found {result.value}", 5.0, True, False, {}


class Masked(ew.Environment):
    def reset(self):
        return 0, {"action_mask": [True, False, True]}

    def step(self, action: Literal["left", "stay", "right"]):
        return action, 1.0, True, False, {}


class Chat(ew.Environment):
    def reset(self):
        return "How are you?", {}

    def step(self, action: str):
        return f"You said {action}.", 0.0, False, False, {}


def chat():
    return ew.ChatWrapper(Chat(), "Be kind.")
"""


@pytest.fixture
def play(envweave, here, monkeypatch):
    (here / "played_env.py").write_text(SOURCE)

    def run(env_id, lines, *options):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        env_id = env_id if "-v0" in env_id else f"pkg://played_env:{env_id}"
        return envweave("play", env_id, *options)

    return run


def test_a_game_is_played_to_its_end(play):
    ran = play("counter-v0", ["1", "2"], "--arg", "done_at=3", "--seed", "4")

    assert ran.code == 0
    assert "episode 1 · seed 4" in ran.text
    assert "delta (a whole number): 1" in ran.text
    assert "reward +2 so far +3" in ran.text
    assert "over: terminated" in ran.text
    assert "return +3 in 2 steps" in ran.text


def test_every_kind_of_field_has_its_prompt(play):
    lines = ["2", "7", "y", "1.5", "", "Ada", "x = 1", "print(x)", "", "[1, 2]", "", "n"]

    ran = play("Form", lines)

    assert "pace (1) slow 2) fast): 2" in ran.text
    assert "count (0 to 9): 7" in ran.text
    assert "sure (y or n): y" in ran.text
    assert "at.y (a number) [0.5]:" in ran.text
    assert "code (code; an empty line ends it): x = 1" in ran.text
    assert "weights (list of float, as JSON) [default]: [1, 2]" in ran.text
    assert "text Pace.FAST 7 True (1.5, 0.5) 'Ada' 'x = 1\\nprint(x)' [1.0, 2.0] calm" in ran.text


def test_a_value_that_does_not_fit_is_asked_for_again(play):
    ran = play("Form", ["9", "slow", "12", "seven", "7", "perhaps", "no"])

    assert ran.code == 0
    assert "'9' is not one of the choices: 1) slow 2) fast." in ran.text
    assert "count: 12 is not between 0 and 9" in ran.text
    assert "'seven' is not a whole number." in ran.text
    assert "'perhaps' is neither y nor n." in ran.text


def test_text_of_several_lines_is_delimited_by_marks(play):
    ran = play("Stubborn", ["<<", "pretty", "please", ">>", "please"])

    assert "'pretty\\nplease' is not polite" in ran.text
    assert "reward +2 = manners +3, cost -1" in ran.text


def test_a_refused_action_costs_nothing(play):
    ran = play("Stubborn", ["now", "please"], "--json")

    (episode,) = json.loads(ran.stdout)["episodes"]
    assert episode["steps"] == [{"action": "please", "reward": 2.0}]
    assert (episode["return"], episode["reason"]) == (2.0, "terminated")
    assert "'now' is not polite" in " ".join(ran.stderr.split())


def test_only_legal_choices_are_offered(play):
    ran = play("Masked", ["stay", "right"])

    assert "action (1) left 3) right): stay 'stay' is not one of the choices" in ran.text
    assert "over: terminated" in ran.text


def test_several_agents_are_asked_by_name(play):
    ran = play("tictactoe-v0", ["0", "0", "4"])

    assert "x acts cell (0 to 8): 0" in ran.text
    assert "o acts cell (1 to 8): 0 0 is not legal now. Legal: 1 to 8. cell (1 to 8): 4" in ran.text


def test_a_tool_call_is_answered(play):
    ran = play("Asks", ["y", '"two books"'])

    assert "tool call: search(words='odes')" in ran.text
    assert "found two books" in ran.text
    assert "return +5 in 1 step" in ran.text


def test_a_conversation_shows_what_is_new(play):
    ran = play("chat", ["fine", "good"])

    assert ran.text.count("How are you?") == 1
    assert "user You said fine." in ran.text


def test_text_of_an_environment_cannot_control_the_terminal(play):
    ran = play("Hostile", ["y"])

    assert "\x1b" not in ran.stdout
    assert "\x00" not in ran.stdout
    assert "\\x1b[31mred\\x1b[0m\\x00" in ran.text
    assert "warning: \\x1b]0;title\\x07boo" in ran.text
    assert "over: error (by environment)" in ran.text


def test_commands_act_at_random_show_the_state_and_begin_again(play):
    ran = play("lineworld-v0", [":help", ":random", ":state", ":reset", ":quit"], "--json")

    episodes = json.loads(ran.stdout)["episodes"]
    assert ran.code == 0
    assert [len(one["steps"]) for one in episodes] == [1, 0]
    assert ":random act at random once" in " ".join(ran.stderr.split())
    assert "step_count 1" in " ".join(ran.stderr.split())


def test_another_episode_follows_on_request(play):
    ran = play("counter-v0", ["1", "y", "1", "n"], "--arg", "done_at=1", "--json")

    assert len(json.loads(ran.stdout)["episodes"]) == 2


def test_the_end_of_the_input_ends_the_game(play):
    ran = play("counter-v0", [])

    assert (ran.code, ran.stderr) == (0, "")


def test_a_task_can_be_chosen(play):
    ran = play("codefix-v0", [], "--task", "no-such-task")

    assert ran.code == 2
    assert "no-such-task" in ran.stderr


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("backend", ["process", "http"])
def test_it_is_played_on_other_backends(play, backend):
    ran = play("lineworld-v0", ["1", "1"], "--seed", "3", "--backend", backend, "--json")

    here = play("lineworld-v0", ["1", "1"], "--seed", "3", "--json")
    assert json.loads(ran.stdout)["episodes"] == json.loads(here.stdout)["episodes"]


@pytest.mark.slow  # starts a process
def test_ctrl_c_ends_it_without_a_traceback():
    command = [sys.executable, "-m", "envweave.cli", "play", "counter-v0"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "delta" not in process.stdout.readline():
        process.stdin.write(":help\n")
        process.stdin.flush()

    process.send_signal(2)
    _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (130, "")
