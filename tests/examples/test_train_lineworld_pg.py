from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import envweave as ew
from envweave.examples.plots import main as plots_main
from envweave.examples.train_lineworld_pg import LineWorldConfig, main, train
from envweave.examples.training import RunHistory, RunLog, claim_fresh_run_dir, read_run_log

TINY = ["--num-envs", "4", "--episodes", "12", "--evaluation-episodes", "8"]
PNG = b"\x89PNG\r\n\x1a\n"


def tiny(run_dir, **changes):
    settings = {"num_envs": 4, "episodes": 12, "evaluation_episodes": 8, "run_dir": run_dir}
    return LineWorldConfig(**{**settings, **changes})


def without_time(log):
    return [{key: value for key, value in line.items() if key != "time_s"} for line in log]


@pytest.mark.slow  # trains
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_four_hundred_episodes_reach_95_percent_where_a_random_policy_fails(tmp_path, seed):
    run = RunHistory.read(train(LineWorldConfig(seed=seed, run_dir=tmp_path / "run")))

    assert run.evaluations["trained"]["success"] >= 0.95
    assert run.evaluations["random"]["success"] < 0.45
    assert len(run.points) == 400


@pytest.mark.slow  # trains
def test_with_the_rewards_sign_flipped_success_falls_to_nothing(tmp_path):
    run = RunHistory.read(train(LineWorldConfig(reward_sign=-1, run_dir=tmp_path / "run")))

    assert run.evaluations["trained"]["success"] <= 0.05


@pytest.mark.slow  # trains
def test_a_run_writes_its_log_and_its_picture(tmp_path, capsys):
    run_dir = tmp_path / "run"

    code = main([*TINY, "--run-dir", str(run_dir)])

    log = read_run_log(run_dir)
    episodes = [line for line in log if line["type"] == "episode"]
    assert code == 0
    assert (run_dir / "metrics.png").read_bytes().startswith(PNG)
    assert log[0]["type"] == "run"
    assert sorted(line["episode"] for line in episodes) == list(range(1, 13))
    assert [line["policy"] for line in log if line["type"] == "evaluation"] == ["random", "trained"]
    assert any(line["type"] == "update" for line in log)
    assert str(run_dir / "metrics.png") in capsys.readouterr().out


def test_the_log_is_correct_about_each_episode(tmp_path):
    train(tiny(tmp_path / "run", episodes=60))

    for line in read_run_log(tmp_path / "run"):
        if line["type"] == "episode":
            end = 1 if line["success"] else (0 if line["truncated"] else -1)
            assert line["return"] == pytest.approx(end - 0.01 * line["length"])


@pytest.mark.slow  # trains
def test_the_same_seed_writes_the_same_log_apart_from_the_time(tmp_path):
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        train(tiny(tmp_path / name, seed=seed))

    one, same, other = (
        without_time(read_run_log(tmp_path / name)) for name in ("one", "same", "other")
    )
    assert one == same
    assert one[1:] != other[1:]


def test_the_summary_shows_the_curve_beside_the_random_policy(tmp_path, capsys):
    main([*TINY, "--run-dir", str(tmp_path / "run")])

    out = capsys.readouterr().out
    assert any(block in out for block in "▁▂▃▄▅▆▇█")
    assert "random policy" in out
    assert "trained policy" in out


def test_the_summary_is_one_json_object_on_demand(tmp_path, capsys):
    main([*TINY, "--json", "--run-dir", str(tmp_path / "run")])

    summary = json.loads(capsys.readouterr().out)
    assert summary["episodes"] == 12
    assert 0 <= summary["trained"]["success"] <= 1
    assert summary["metrics"] == str(tmp_path / "run" / "metrics.jsonl")


def test_progress_goes_to_the_error_stream_with_return_and_success(tmp_path, capsys):
    main([*TINY, "--run-dir", str(tmp_path / "run")])

    assert "12/12 episodes  return " in capsys.readouterr().err


@pytest.mark.slow  # trains
def test_without_a_run_dir_a_fresh_one_is_made_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    codes = [main([*TINY, "--seed", "7"]) for _ in range(2)]

    assert codes == [0, 0]
    assert {run.name for run in (tmp_path / "runs").iterdir()} == {
        "lineworld-seed7",
        "lineworld-seed7-2",
    }


def test_an_existing_run_is_not_written_over(tmp_path, capsys):
    kept = tmp_path / "metrics.jsonl"
    kept.write_text("precious\n")

    code = main([*TINY, "--run-dir", str(tmp_path)])

    assert code == 2
    assert "is not empty" in capsys.readouterr().err
    assert kept.read_text() == "precious\n"


def test_a_run_dir_that_cannot_be_made_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")

    code = main([*TINY, "--run-dir", str(tmp_path / "file" / "run")])

    assert code == 2
    assert "cannot be made" in capsys.readouterr().err


def test_an_unknown_backend_is_refused_and_leaves_no_directory(tmp_path, capsys):
    code = main([*TINY, "--backend", "inprok", "--run-dir", str(tmp_path / "run")])

    assert code == 2
    assert "Did you mean 'inproc'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_image_without_a_backend_for_it_is_refused(tmp_path, capsys):
    code = main([*TINY, "--docker-image", "mine:1", "--run-dir", str(tmp_path / "run")])

    assert code == 2
    assert "Add --backend docker_http" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--episodes", "0"], "argument --episodes: 0 is too small; use 1 or more"),
        (["--num-envs", "many"], "argument --num-envs: 'many' is not an integer"),
        (["--seed", "-1"], "argument --seed: -1 is too small; use 0 or more"),
        (["--seed", str(2**31)], "is too large"),
        (["--gamma", "1.5"], "argument --gamma: 1.5 is not between 0 and 1"),
        (["--learning-rate", "nan"], "argument --learning-rate: 'nan' is not a number"),
        (["--learning-rate", "0"], "argument --learning-rate: 0 is not more than 0"),
        (["--reward-sign", "2"], "argument --reward-sign: invalid choice"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(option)

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_training_completes_and_prints_the_install_command(
    tmp_path, monkeypatch, capsys
):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)

    code = main([*TINY, "--run-dir", str(tmp_path / "run")])

    assert code == 0
    assert "pip install 'envweave[train]'" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


@pytest.mark.slow  # trains
def test_an_interrupted_run_keeps_its_log_and_shows_no_traceback(tmp_path, capsys):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "envweave.examples.train_lineworld_pg"]
    options = ["--episodes", "30000", "--run-dir", str(run_dir)]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first line of progress: training is under way

        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    log = read_run_log(run_dir)
    assert process.returncode == 130
    assert "Interrupted after" in errors
    assert "Traceback" not in errors
    assert log[-1]["type"] == "interrupted"
    assert sum(line["type"] == "episode" for line in log) == log[-1]["episodes"] >= 3000
    assert plots_main([str(run_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(run_dir / "metrics.png")


def test_a_directory_without_a_run_cannot_be_drawn(tmp_path, capsys):
    code = plots_main([str(tmp_path)])

    assert code == 2
    assert "has no run" in capsys.readouterr().err


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    with RunLog(tmp_path, {"seed": 1}) as log:
        log.write("episode", episode=1)
    with log.path.open("a") as file:
        file.write('{"type": "epis')

    assert without_time(read_run_log(tmp_path)) == [
        {"type": "run", "seed": 1},
        {"type": "episode", "episode": 1},
    ]


def test_a_runs_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")

    with pytest.raises(ew.errors.OptionError, match="runs"):
        claim_fresh_run_dir(tmp_path / "runs", "lineworld")


@pytest.mark.slow  # trains
def test_a_full_disk_is_reported_and_the_log_is_kept(tmp_path):
    run_dir = tmp_path / "run"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "from envweave.examples.train_lineworld_pg import main; sys.exit(main(sys.argv[1:]))"
    )

    ran = subprocess.run(
        [sys.executable, "-c", limited, *TINY, "--run-dir", str(run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 1
    assert "Error: the run could not be written" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert read_run_log(run_dir)[0]["type"] == "run"
