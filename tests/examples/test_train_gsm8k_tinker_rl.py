"""Training on GSM8K through the official Tinker SDK, against a loopback service.

The service holds a real policy with real sampling, gradients and Adam, but no language model: it
can learn eight questions by heart, or to answer with a letter. So these curves say that the
trainer works, and nothing about GSM8K.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_services import TINKER_KEY, TINKER_MODEL, read_run_log, tinker_service, without_time

from envweave.examples.train_gsm8k_tinker_rl import main

PNG = b"\x89PNG\r\n\x1a\n"
EIGHT_QUESTIONS = ["--max-examples", "8", "--max-tokens", "2", "--lr", "0.3"]
TINY = [*EIGHT_QUESTIONS, "--episodes", "128", "--groups-per-step", "4", "--evaluation-tasks", "4"]

FRAGILE = """
import sys, envweave as ew
from envweave.envs.gsm8k_env import GSM8KAction, GSM8KEnv, GSM8KObservation
from envweave.examples.train_gsm8k_tinker_rl import main

class Fragile(ew.Environment):
    def __init__(self, **options):
        self._inner = GSM8KEnv(**options)
        self.tasks = self._inner.tasks

    def reset(self, *, task: ew.Task, seed: int | None = None) -> GSM8KObservation:
        self._task_id = task.id
        return self._inner.reset(task=task, seed=seed)

    def step(self, action: GSM8KAction) -> GSM8KObservation:
        if self._task_id == "train-3":
            raise OSError("disk full")
        return self._inner.step(action)

ew.register("gsm8k-v0", Fragile, replace=True)
sys.exit(main(sys.argv[1:]))
"""

slow = [pytest.mark.slow, pytest.mark.timeout(300)]  # they start the SDK, and train


@pytest.fixture(scope="module")
def service():
    with tinker_service() as one:
        yield one


def episodes(run_dir: Path):
    return [line for line in read_run_log(run_dir) if line["type"] == "episode"]


def evaluations(run_dir: Path):
    log = read_run_log(run_dir)
    return {line["policy"]: line["success"] for line in log if line["type"] == "evaluation"}


def mean(lines, name="return"):
    return sum(line[name] for line in lines) / len(lines)


class TestLearning:
    pytestmark = slow

    @pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
    def test_the_reward_rises(self, service, tmp_path, loss_fn):
        service.train(
            *EIGHT_QUESTIONS, "--episodes", 640, "--loss-fn", loss_fn, "--run-dir", tmp_path / "run"
        )

        played = episodes(tmp_path / "run")
        assert len(played) == 640
        assert mean(played[:64]) < 0.25
        assert mean(played[-100:]) > 0.4

    def test_the_reward_falls_with_the_advantages_sign_flipped(self, service, tmp_path):
        service.train(
            *EIGHT_QUESTIONS, "--episodes", 768, "--reward-sign", -1, "--run-dir", tmp_path / "run"
        )

        played = episodes(tmp_path / "run")
        assert mean(played[:64]) > 0.03
        assert mean(played[-100:]) < 0.02

    def test_learning_generalizes_to_held_out_questions(self, service, tmp_path):
        """Of four choices the policy learns to name one, and reaches what chance reaches."""
        service.train(
            *("--env", "gsm8k-choice-v0", "--max-tokens", 2, "--lr", 0.3, "--episodes", 768),
            *("--evaluation-tasks", 32, "--run-dir", tmp_path / "run"),
        )

        reached = evaluations(tmp_path / "run")
        assert reached["base"] == 0
        assert 0.1 <= reached["trained"] <= 0.5

    def test_stale_sampling_weights_still_learn(self, service, tmp_path):
        before = service.ask("stats").get("save_weights_for_sampler", 0)  # none if it is the first
        service.train(
            *EIGHT_QUESTIONS, "--episodes", 768, "--sync-every", 3, "--run-dir", tmp_path / "run"
        )
        refreshes = service.ask("stats")["save_weights_for_sampler"] - before

        updates = sum(line["type"] == "update" for line in read_run_log(tmp_path / "run"))
        assert 1 + updates // 3 <= refreshes <= 2 + updates // 3
        assert mean(episodes(tmp_path / "run")[-100:]) > 0.3


class TestARun:
    pytestmark = slow

    def test_writes_a_log_and_a_plot_that_name_the_fake_service(self, service, tmp_path):
        done = service.train(*TINY, "--run-dir", tmp_path / "run")

        log = read_run_log(tmp_path / "run")
        assert (log[0]["backend"], log[0]["env_backend"]) == ("fake", "inproc")
        assert log[0]["dataset"] == "gsm8k-sample"
        assert log[0]["title"] == "GSM8K sample [fake service, no language model]"
        assert "GSM8K sample [fake service, no language model]" in done.stdout
        assert [line["policy"] for line in log if line["type"] == "evaluation"] == [
            "base",
            "trained",
        ]
        assert [line["episode"] for line in log if line["type"] == "episode"] == [*range(1, 129)]
        assert (tmp_path / "run/metrics.png").read_bytes().startswith(PNG)

    def test_trains_on_exactly_the_tokens_that_were_sampled(self, service, tmp_path):
        before = service.ask("stats")
        service.train(*TINY, "--run-dir", tmp_path / "run")
        after = service.ask("stats")

        log = read_run_log(tmp_path / "run")
        trained = sum(line["completions"] for line in log if line["type"] == "update")
        assert trained > 0
        assert after["exact"] - before.get("exact", 0) == trained
        assert after.get("inexact", 0) == 0

    def test_poses_the_question_as_a_message_where_the_tokenizer_has_a_chat_template(
        self, service, tmp_path
    ):
        before = service.ask("stats")
        service.train(
            *(*TINY, "--env", "gsm8k-choice-v0", "--tokenizer", "word_tokenizer:chat_tokenizer"),
            *("--run-dir", tmp_path / "run"),
        )
        after = service.ask("stats")

        assert after["last prompt token 18"] > before.get("last prompt token 18", 0)
        assert after.get("inexact", 0) == 0
        assert mean(episodes(tmp_path / "run")) > 0

    def test_leaves_out_groups_whose_rewards_are_equal(self, service, tmp_path):
        service.train(*TINY, "--run-dir", tmp_path / "run")

        log = read_run_log(tmp_path / "run")
        for update in (line for line in log if line["type"] == "update"):
            played = [one for one in episodes(tmp_path / "run") if one["batch"] == update["batch"]]
            groups = [
                [one for one in played if one["group"] == group]
                for group in range(update["groups"])
            ]
            assert all(len({one["task"] for one in group}) == 1 for group in groups)
            differing = [group for group in groups if len({one["return"] for one in group}) > 1]
            assert update["informative_groups"] == len(differing)
            assert update["completions"] == 8 * len(differing)

    def test_is_the_same_for_the_same_seed_on_another_backend(self, service, tmp_path):
        service.train(*TINY, "--run-dir", tmp_path / "one")
        service.train(*TINY, "--run-dir", tmp_path / "two", "--backend", "process", "--num-envs", 3)
        service.train(*TINY, "--run-dir", tmp_path / "other", "--seed", 1)

        one, two, other = (
            without_time(read_run_log(tmp_path / name)) for name in ("one", "two", "other")
        )
        assert one == two
        assert one[2:] != other[2:]

    def test_that_is_killed_and_resumed_has_the_log_of_one_that_was_not(self, service, tmp_path):
        options = [*EIGHT_QUESTIONS, "--episodes", "512", "--checkpoint-every", "2"]
        service.train(*options, "--run-dir", tmp_path / "whole")
        killed = service.command(*options, "--run-dir", str(tmp_path / "killed"))
        with subprocess.Popen(
            killed, env=service.variables(), stderr=subprocess.DEVNULL
        ) as process:
            metrics = tmp_path / "killed/metrics.jsonl"
            # In the middle of a batch, some time after a checkpoint.
            while not metrics.exists() or metrics.read_text().count('"batch": 4') < 1:
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        before = len(episodes(tmp_path / "killed"))
        service.train(*options, "--run-dir", tmp_path / "killed", "--resume")

        assert 0 < before < 512
        assert without_time(read_run_log(tmp_path / "killed")) == without_time(
            read_run_log(tmp_path / "whole")
        )

    def test_never_saves_over_its_last_checkpoint(self, service, tmp_path):
        """Else a kill before `checkpoint.json` is written would pair it with later weights."""
        options = ["--groups-per-step", "1", "--checkpoint-every", "3", "--episodes", "64"]
        before = service.ask("stats").get("save_weights", 0)
        service.train(*EIGHT_QUESTIONS, *options, "--run-dir", tmp_path / "run")
        after = service.ask("stats")

        assert after["save_weights"] - before == 3  # after 3, 6 and 8 batches
        assert after["saves over the last one"] == 0

    def test_ended_by_ctrl_c_prints_how_to_resume(self, service, tmp_path):
        metrics = tmp_path / "run/metrics.jsonl"
        command = service.command(*EIGHT_QUESTIONS, "--run-dir", str(metrics.parent))
        with subprocess.Popen(
            command, env=service.variables(), stderr=subprocess.PIPE, text=True
        ) as process:
            while not metrics.exists() or '"update"' not in metrics.read_text():
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()

        assert process.returncode == 130
        assert (
            f"Continue it with the same command and: --run-dir {metrics.parent} --resume" in errors
        )
        assert read_run_log(metrics.parent)[-1]["type"] == "interrupted"

    def test_stops_at_the_target(self, service, tmp_path):
        service.train(
            *(*EIGHT_QUESTIONS, "--episodes", 5000, "--target-success-rate", 0.4),
            *("--run-dir", tmp_path / "run"),
        )

        played = episodes(tmp_path / "run")
        assert 100 <= len(played) < 2000
        assert mean(played[-100:], "success") >= 0.4
        assert mean(played[-164:-64], "success") < 0.4

    def test_leaves_out_lost_episodes_and_never_counts_them_as_zero(self, service, tmp_path):
        done = subprocess.run(
            [service.python, "-c", FRAGILE, *TINKER_MODEL, *TINY, "--run-dir", tmp_path / "run"],
            env=service.variables(),
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        lost = [line for line in episodes(tmp_path / "run") if line["task"] == "train-3"]
        others = [line for line in episodes(tmp_path / "run") if line["task"] != "train-3"]
        assert lost
        assert all(line["return"] is line["success"] is None for line in lost)
        assert all(line["return"] is not None for line in others)
        for line in read_run_log(tmp_path / "run"):
            if line["type"] == "update":
                assert line["completions"] == 8 * line["informative_groups"]


class TestARefusal:
    def test_comes_without_a_key_before_anything_else(self, monkeypatch, capsys, tmp_path):
        monkeypatch.delenv("TINKER_API_KEY", raising=False)

        code = main(["--backend", "no-such-backend", "--run-dir", str(tmp_path / "run")])

        assert code == 2
        assert "TINKER_API_KEY is not set" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_names_the_extra_where_the_sdk_is_missing(self, monkeypatch, capsys):
        monkeypatch.setenv("TINKER_API_KEY", TINKER_KEY)
        monkeypatch.setitem(sys.modules, "tinker", None)

        code = main([])

        assert code == 2
        assert "pip install 'envweave[train,tinker]'" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            (["--group-size", "1"], "a group of 1 has nothing to compare"),
            (["--loss-fn", "dro"], "invalid choice: 'dro'"),
            (["--target-success-rate", "2"], "2 is not between 0 and 1"),
            (["--lr", "0"], "0 is not more than 0"),
        ],
    )
    def test_of_an_option(self, option, message, capsys):
        with pytest.raises(SystemExit) as refusal:
            main(option)

        assert refusal.value.code == 2
        assert message in capsys.readouterr().err

    @pytest.mark.slow  # starts the SDK
    @pytest.mark.parametrize(
        ("options", "variables", "message"),
        [
            ([], {"TINKER_API_KEY": "tml-wrong"}, "the key in TINKER_API_KEY is not valid"),
            ([], {"TINKER_API_KEY": "sk-wrong"}, "must start with the 'tml-' prefix"),
            (
                ["--base-model", "fake/tabula"],
                {},
                "Tinker has no model 'fake/tabula'. Did you mean 'fake/tabular'? Use --base-model",
            ),
            (["--tokenizer", "json:nothing"], {}, "The tokenizer 'json:nothing' cannot be loaded"),
            (
                ["--service-timeout-s", "2"],
                {"TINKER_BASE_URL": "http://127.0.0.1:9"},
                "no result from http://127.0.0.1:9 for 2 s",
            ),
        ],
    )
    def test_by_the_service(self, service, tmp_path, options, variables, message):
        done = service.train(*options, "--run-dir", tmp_path / "run", code=2, **variables)

        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow  # starts the SDK
    @pytest.mark.parametrize("split", ["train", "test"])
    def test_of_a_dataset_without_a_split(self, service, tmp_path, split):
        (tmp_path / f"{split}.jsonl").write_text('{"question": "1?", "answer": "#### 1"}\n')

        done = service.train("--data", tmp_path, "--run-dir", tmp_path / "run", code=2)

        other = "test" if split == "train" else "train"
        assert f"no {other}.jsonl" in done.stderr
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow  # starts the SDK
    @pytest.mark.parametrize(
        ("route", "status", "message"),
        [
            ("get_server_capabilities", 402, "The job is paused due to billing status"),
            ("create_model", 403, "may not do this"),
            ("asample", 401, "the key in TINKER_API_KEY is not valid"),
            ("retrieve_future", 500, "no result from"),
            ("optim_step", 429, "no result from"),
        ],
    )
    def test_of_a_call(self, service, tmp_path, route, status, message):
        service.ask("fail", route=route, status=status, times=10_000)
        try:
            done = service.train(
                *(*TINY, "--service-timeout-s", 4, "--run-dir", tmp_path / "run"), code=2
            )
        finally:
            service.ask("fail", route=route, status=status, times=0)

        assert message in done.stderr
        assert "Traceback" not in done.stderr
        if (tmp_path / "run").exists():
            assert f"--run-dir {tmp_path / 'run'} --resume" in done.stderr

    @pytest.mark.slow  # starts the SDK
    def test_that_passes_is_waited_out(self, service, tmp_path):
        for route, status in (("asample", 429), ("optim_step", 503), ("retrieve_future", 500)):
            service.ask("fail", route=route, status=status, times=2)
        service.train(*TINY, "--run-dir", tmp_path / "run")
        service.train(*TINY, "--run-dir", tmp_path / "again")

        assert without_time(read_run_log(tmp_path / "run")) == without_time(
            read_run_log(tmp_path / "again")
        )
