from __future__ import annotations

import io
import json
import sys

import pytest

import envweave as ew
from envweave.examples import train_codefix_pg, train_gsm8k_tinker_rl, train_lineworld_pg
from envweave.examples.training import RunLog, open_run_dir, read_run_log, replace_file
from envweave.examples.training.program import training_progress

SETTINGS = {"seed": 1, "episodes": 10, "backend": "inproc"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_the_live_figures():
    terminal = Terminal()

    with training_progress(10, terminal) as show:
        show(10, 0.875, 1.0)

    output = terminal.getvalue()
    assert "10/10" in output
    assert "+0.88" in output
    assert "100%" in output


def test_without_rich_a_terminal_gets_a_line_now_and_then(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal = Terminal()

    with training_progress(20, terminal) as show:
        for finished in range(1, 21):
            show(finished, 0.5, 0.25)

    lines = terminal.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1].split() == ["20/20", "episodes", "return", "+0.50", "success", "25%"]


def test_a_resumed_log_drops_the_lines_after_its_checkpoint_and_one_that_was_cut_off(tmp_path):
    with RunLog(tmp_path, SETTINGS) as log:
        log.write("update", update=1)
        at_checkpoint = log.num_lines
        log.write("update", update=2, lost=True)
    with log.path.open("a") as file:
        file.write('{"type": "upd')

    with RunLog(tmp_path, SETTINGS, keep_lines=at_checkpoint) as log:
        log.write("update", update=2)

    assert [{**line, "time_s": 0} for line in read_run_log(tmp_path)] == [
        {"type": "run", **SETTINGS, "time_s": 0},
        {"type": "update", "update": 1, "time_s": 0},
        {"type": "update", "update": 2, "time_s": 0},
    ]


def test_times_of_a_resumed_log_continue_from_the_checkpoint(tmp_path):
    settings = json.dumps({"type": "run", **SETTINGS, "time_s": 0.0})
    (tmp_path / "metrics.jsonl").write_text(settings + '\n{"type": "update", "time_s": 500.0}\n')

    with RunLog(tmp_path, SETTINGS, keep_lines=2) as log:
        log.write("update")

    assert read_run_log(tmp_path)[-1]["time_s"] >= 500


def test_a_resumed_run_may_change_its_backend_and_length_but_not_its_seed(tmp_path):
    with RunLog(tmp_path, SETTINGS):
        pass

    with RunLog(tmp_path, {**SETTINGS, "backend": "http", "episodes": 20}, keep_lines=1):
        pass
    with pytest.raises(ew.errors.OptionError, match="seed=1, not 2"):
        RunLog(tmp_path, {**SETTINGS, "seed": 2}, keep_lines=1)

    assert read_run_log(tmp_path)[0]["episodes"] == 20


def test_a_log_that_lost_lines_is_not_resumed(tmp_path):
    with RunLog(tmp_path, SETTINGS):
        pass

    with pytest.raises(ew.errors.OptionError, match="has 1 lines, but its checkpoint"):
        RunLog(tmp_path, SETTINGS, keep_lines=5)


def test_resuming_needs_a_run_dir_and_starts_an_empty_one(tmp_path):
    with pytest.raises(ew.errors.OptionError, match="Add --run-dir"):
        open_run_dir(None, "codefix", resume=True)

    assert open_run_dir(tmp_path / "run", "codefix", resume=True).is_dir()


def test_a_file_that_could_not_be_written_whole_leaves_the_old_one(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_text("old")

    def fail(beside):
        beside.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, fail)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("program", "image"),
    [
        (train_lineworld_pg, "envweave-lineworld"),
        (train_codefix_pg, "envweave-codefix"),
        (train_gsm8k_tinker_rl, "envweave-gsm8k"),
    ],
)
def test_the_help_names_the_image_that_docker_http_runs(program, image, capsys):
    with pytest.raises(SystemExit):
        program.main(["--help"])

    assert f"(default: {image})" in " ".join(capsys.readouterr().out.split())
