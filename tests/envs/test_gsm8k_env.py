"""GSM8K as an environment: what it asks, what it pays, where its questions come from."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import http.server
import json
import logging
import threading
from fractions import Fraction

import pytest
from installations import real_gsm8k

import envweave as ew
from envweave.envs.gsm8k_env import GSM8KChoiceEnv, GSM8KEnv
from envweave.envs.gsm8k_env import dataset as dataset_module
from envweave.envs.gsm8k_env.dataset import SAMPLE, fetch, load
from envweave.testing import EnvironmentConformance

IDS = ["gsm8k-v0", "gsm8k-choice-v0"]


@pytest.fixture(autouse=True)
def nothing_but_the_sample(monkeypatch, tmp_path):
    monkeypatch.delenv("ENVWEAVE_GSM8K", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def rows(tmp_path):
    """A folder with three questions of our own."""
    folder = tmp_path / "rows"
    folder.mkdir()
    lines = [
        {"question": f"{n} + {n}?", "answer": f"{n}+{n}={2 * n}\n#### {2 * n}"} for n in (1, 2, 3)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "train.jsonl").write_text(text)
    return folder


class TestGSM8KConformance(EnvironmentConformance):
    def make_environment(self):
        return GSM8KEnv()

    def episode(self):
        return [{"text": "#### 72"}]


class TestGSM8KChoiceConformance(EnvironmentConformance):
    def make_environment(self):
        return GSM8KChoiceEnv()

    def episode(self):
        return [{"text": "A"}]


def answers(task_id):
    """The answer of a task in the sample, from its file."""
    split, _, index = task_id.rpartition("-")
    line = (SAMPLE / f"{split}.jsonl").read_text().splitlines()[int(index)]
    return json.loads(line)["answer"]


def test_a_right_answer_in_its_form_earns_both_parts():
    with ew.make("gsm8k-v0") as env:
        began = env.reset(task="train-0")
        result = env.step({"text": "48 / 2 = 24, 48 + 24 = 72\n#### 72"})

    assert began.observation.prompt.startswith("Natalia sold clips to 48 of her friends")
    assert result.terminated is True
    assert result.reward == pytest.approx(1.1)
    assert result.reward_parts == {"correct": 1.0, "format": 0.1}
    assert result.metrics == {"success": 1.0, "format": 1.0}


@pytest.mark.parametrize(
    ("options", "text", "parts"),
    [
        ({}, "The answer is $72.00.", {"correct": 1.0, "format": 0.0}),
        ({}, "#### 71", {"correct": 0.0, "format": 0.1}),
        ({}, "who knows", {"correct": 0.0, "format": 0.0}),
        ({"extraction": "exact"}, "The answer is 72.", {"correct": 0.0, "format": 0.0}),
        ({"extraction": "exact", "format_reward": 0.5}, "#### 72", {"correct": 1.0, "format": 0.5}),
    ],
)
def test_an_answer_earns_its_parts(options, text, parts):
    with ew.make("gsm8k-v0", **options) as env:
        env.reset(task="train-0")
        assert env.step({"text": text}).reward_parts == parts


def test_every_question_of_the_sample_is_answered_by_its_own_solution():
    with ew.make("gsm8k-v0") as env:
        earned = []
        for split in ("train", "test"):
            for task in env.tasks.split(split):
                env.reset(task=task)
                earned.append(env.step({"text": answers(task.id)}).reward)

    assert earned == [pytest.approx(1.1)] * 96


def test_a_seed_selects_the_question_within_the_split():
    with ew.make("gsm8k-v0") as env:
        drawn = [env.reset(seed=seed).task_id for seed in range(20)]
        again = [env.reset(seed=seed).task_id for seed in range(20)]
    with ew.make("gsm8k-v0", split="test", max_examples=4) as env:
        tests = {env.reset(seed=seed).task_id for seed in range(40)}

    assert drawn == again
    assert len(set(drawn)) > 10
    assert tests == {"test-0", "test-1", "test-2", "test-3"}


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("backend", ["inproc", pytest.param("http", marks=pytest.mark.slow)])
def test_the_answer_is_not_visible_to_a_caller(env_id, backend):
    secret = answers("train-4").splitlines()[0]  # a line of the solution
    with ew.make(env_id, backend=backend) as env:
        seen = [env.tasks.get("train-4"), env.reset(task="train-4", seed=1), env.state()]
        seen.append(env.step({"text": "no idea"}))
        seen.append(env.state())
        with pytest.raises(ew.errors.TaskError, match="stays with its environment"):
            env.tasks.get("train-4").private["answer"]

    assert secret not in repr(seen)
    if env_id == "gsm8k-v0":
        assert "624" not in repr(seen)


def test_four_choices_are_distinct_and_one_is_right():
    with ew.make("gsm8k-choice-v0") as env:
        for task in env.tasks.split("train"):
            began = env.reset(task=task, seed=0)
            right = Fraction(answers(task.id).rpartition("#### ")[2].replace(",", ""))
            choices = [Fraction(one.replace(",", "")) for one in began.info["choices"]]
            letter = "ABCD"[choices.index(right)]

            assert len(set(choices)) == 4
            assert f"{letter}) {began.info['choices'][choices.index(right)]}\n" in (
                began.observation.prompt
            )
            assert env.step({"text": letter}).reward_parts == {"correct": 1.0, "format": 0.1}


def test_the_same_task_and_seed_pose_the_same_choices():
    with ew.make("gsm8k-choice-v0") as env:
        posed = {
            seed: [env.reset(task="train-4", seed=seed).info["choices"] for _ in range(2)]
            for seed in range(10)
        }

    assert all(first == second for first, second in posed.values())
    assert len({tuple(first) for first, _ in posed.values()}) > 5


@pytest.mark.slow  # all 1,319 test questions
def test_neither_position_nor_size_of_a_choice_reveals_the_answer():
    positions, ranks = collections.Counter(), collections.Counter()
    environment = GSM8KChoiceEnv(path=real_gsm8k())
    for task in environment.tasks.split("test"):
        began = environment.reset(task=task, seed=0)
        answer = Fraction(task.private["answer"])
        choices = [Fraction(one.replace(",", "")) for one in began.metadata["choices"]]
        assert len(set(choices)) == 4
        positions[choices.index(answer)] += 1
        ranks[sorted(choices).index(answer)] += 1

    for counted in (positions, ranks):
        assert sum(counted.values()) == 1319
        assert all(270 <= counted[i] <= 390 for i in range(4)), counted


@pytest.mark.parametrize("env_id", IDS)
def test_a_vector_of_them_plays(env_id):
    with ew.make_vector(env_id, num_envs=3) as venv:
        venv.reset(task=["train-0", "train-1", "test-0"], seed=0)
        batch = venv.step([{"text": "#### 72"}, {"text": "#### 1"}, {"text": "?"}])

    assert batch.terminated.tolist() == [True] * 3
    if env_id == "gsm8k-v0":
        assert batch.reward.tolist() == pytest.approx([1.1, 0.1, 0.0])


def test_the_sample_is_labeled_as_a_sample(caplog):
    dataset_module._warn_about_sample.cache_clear()
    with caplog.at_level(logging.WARNING), ew.make("gsm8k-v0") as env:
        began = env.reset(seed=0)
        ew.make("gsm8k-v0").close()

        assert began.info["dataset"] == env.state().dataset == "gsm8k-sample"
    assert [record.message for record in caplog.records] == [
        "GSM8K: the full dataset was not found; using a sample of 64 training and 32 test "
        "questions. For all 8,792, pass download=True, or a folder as path=… or $ENVWEAVE_GSM8K."
    ]


def test_the_sample_comes_with_its_licence():
    assert "MIT License" in (SAMPLE / "LICENSE").read_text()


def test_the_sample_is_the_start_of_the_real_files():
    for split, count in (("train", 64), ("test", 32)):
        lines = (real_gsm8k() / f"{split}.jsonl").read_text().splitlines()
        assert (SAMPLE / f"{split}.jsonl").read_text().splitlines() == lines[:count]


def test_a_folder_is_named_by_option_or_by_variable(rows, monkeypatch):
    by_option = load(rows)
    monkeypatch.setenv("ENVWEAVE_GSM8K", str(rows))
    by_variable = load()

    for dataset in (by_option, by_variable):
        assert dataset.name == "custom"
        assert dataset.tasks.splits == ("train",)
        assert [task.data["question"] for task in dataset.tasks.split("train")] == [
            "1 + 1?",
            "2 + 2?",
            "3 + 3?",
        ]


def test_max_examples_keeps_the_first_rows(rows):
    with ew.make("gsm8k-v0", path=str(rows), max_examples=2) as env:
        assert env.tasks.length("train") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/nowhere"}, "There is no GSM8K in '/nowhere'"),
        ({"split": "tests"}, "split='tests' is not a split of GSM8K"),
        ({"max_examples": 0}, "max_examples must be an integer >= 1, got 0"),
        ({"max_examples": "3"}, "max_examples must be an integer >= 1, got '3'"),
        ({"extraction": "exacts"}, "Did you mean 'exact'?"),
        ({"download": "ftp://here"}, "not an http or https address"),
    ],
)
def test_an_option_that_is_wrong_is_refused(options, message):
    with pytest.raises(ew.errors.OptionError) as refusal:
        GSM8KEnv(**options)

    assert message in str(refusal.value)


def test_a_split_that_a_folder_lacks_is_refused(rows):
    with pytest.raises(ew.errors.OptionError, match=r"has no test\.jsonl"):
        GSM8KEnv(path=rows, split="test")


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"question": "1?"}',
        '{"question": "1?", "answer": "one"}',
        '{"question": 1, "answer": "#### 1"}',
        "",
        "\xff",  # not UTF-8
    ],
)
def test_a_row_that_is_not_gsm8k_is_refused_by_its_line(rows, line):
    with (rows / "train.jsonl").open("a", encoding="latin-1") as file:
        file.write(line + "\n")

    with pytest.raises(ew.errors.OptionError, match=r"Line 4 of '.*train\.jsonl' is not a row"):
        GSM8KEnv(path=rows)


def test_a_custom_row_may_have_any_character_and_nonnumeric_steps(rows):
    row = {"question": "One\u2028two?", "answer": "<<1=1.2.3>> <<1=-.>> <<1+1=.5>>\n#### 2"}
    (rows / "train.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")

    with ew.make("gsm8k-choice-v0", path=str(rows)) as env:
        assert env.reset(task="train-0", seed=0).observation.prompt.startswith("One\u2028two?")


def test_a_cache_that_cannot_be_written_is_refused(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")

    with pytest.raises(ew.errors.StartupError, match="could not be downloaded"):
        GSM8KEnv(download="http://127.0.0.1:9")


@contextlib.contextmanager
def served(files):
    """Serve bytes by path over loopback; yield the address and what was asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_download_with_the_right_checksum_is_installed(tmp_path):
    content = b"rows\n"
    with served({"/train.jsonl": content}) as (url, _):
        fetch(
            f"{url}/train.jsonl", tmp_path / "new/train.jsonl", hashlib.sha256(content).hexdigest()
        )

    assert (tmp_path / "new/train.jsonl").read_bytes() == content
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["train.jsonl"]


def test_a_download_with_another_checksum_is_refused_and_not_kept(tmp_path):
    with (
        served({"/train.jsonl": b"not GSM8K"}) as (url, _),
        pytest.raises(ew.errors.StartupError, match="is not the official file: its sha256 is"),
    ):
        GSM8KEnv(download=url)

    assert list((tmp_path / "cache/envweave/gsm8k").iterdir()) == []


def test_a_failed_download_is_reported_with_the_alternatives():
    with served({}) as (url, _), pytest.raises(ew.errors.StartupError) as failure:
        GSM8KEnv(download=url)

    assert "HTTP Error 404" in str(failure.value)
    assert "pass it as path=… or $ENVWEAVE_GSM8K" in str(failure.value)


def test_a_download_is_cached():
    real = {f"/{path.name}": path.read_bytes() for path in real_gsm8k().glob("*.jsonl")}
    with served(real) as (url, asked):
        first = load(download=url)
        second = load(download=url)
    third = load()

    assert sorted(asked) == ["/test.jsonl", "/train.jsonl"]
    assert [one.name for one in (first, second, third)] == ["gsm8k"] * 3
    assert third.tasks.length("train") == 7473


def test_a_damaged_cache_is_not_used(tmp_path):
    folder = tmp_path / "cache/envweave/gsm8k"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_bytes((SAMPLE / f"{split}.jsonl").read_bytes()[:-1])

    assert load().name == "gsm8k-sample"
