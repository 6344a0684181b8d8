"""Run by test_trainers.py, where TRL is installed."""

import inspect
import json
from dataclasses import dataclass
from pathlib import Path

import datasets
import pytest
import torch
import trl
from byte_tokenizers import byte_tokenizer
from environments.replies import Mortal, Photographer, Recorder, SlowTool, Unscored
from PIL import Image
from trl import GRPOConfig, GRPOTrainer

import envweave as ew
from envweave.examples.train_trafficlight_trl import main
from envweave.examples.training.tiny_language_model import tiny_language_model, tiny_tokenizer
from envweave.trainers.token_sampling import between_replies, encode, render
from envweave.trainers.trl import TRLRollouts
from envweave.trainers.trl_tools import trl_environment

torch.set_num_threads(1)
WORDS = ["first", "second", "yes", "no"]
CHAT = {"render": "{text}"}


def config(folder, **options):
    return GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=8, num_generations=4, max_steps=2,
        learning_rate=0.01, report_to=[], save_strategy="no", beta=0.0, logging_steps=1,
        use_cpu=True, bf16=False, disable_tqdm=True, **{"max_completion_length": 12, **options},
    )  # fmt: skip


def make_trainer(rollouts, folder, rows=None, **options):
    tokenizer = tiny_tokenizer(WORDS)
    rows = rollouts.rows(number=8) if rows is None else rows
    return GRPOTrainer(
        tiny_language_model(tokenizer), rollouts.reward, config(folder, **options),
        datasets.Dataset.from_list(rows), processing_class=tokenizer, rollout_func=rollouts,
    )  # fmt: skip


def prompts(*seeds):
    return [[{"role": "user", "content": f"seed {seed}"}] for seed in seeds]


def test_an_unmodified_trainer_trains_on_whole_episodes(tmp_path):
    with TRLRollouts(
        Mortal, size=8, chat=CHAT, max_turn_tokens=2, record=tmp_path / "run"
    ) as rollouts:
        trainer = make_trainer(rollouts, tmp_path)
        before = {name: one.clone() for name, one in trainer.model.named_parameters()}
        rewards = []
        rollouts.reward = lambda env_reward, **kw: (
            rewards.extend(env_reward) or [float(len(ids)) for ids in kw["completion_ids"]]
        )
        trainer.reward_funcs = [rollouts.reward]
        trainer.train()

    assert rewards == [1.0] * 16
    assert [one.reward for one in ew.load(tmp_path / "run").summaries] == [1.0] * 16
    assert trainer.state.global_step == 2
    assert any(not torch.equal(before[n], one) for n, one in trainer.model.named_parameters())


def test_only_what_the_model_sampled_is_trained_on(tmp_path):
    with TRLRollouts(Mortal, size=8, chat=CHAT, max_turn_tokens=2) as rollouts:
        trainer = make_trainer(rollouts, tmp_path)
        sampled = []
        sample = trainer._generate_single_turn

        def remember(ids, *args):
            made, logprobs = sample(ids, *args)
            sampled.extend((tuple(one), tuple(ids[i])) for i, one in enumerate(made))
            return made, logprobs

        trainer._generate_single_turn = remember
        made = rollouts(prompts(0, 0, 1, 1), trainer)

    tokenizer = trainer.processing_class
    first = tokenizer.convert_tokens_to_ids(["<|user|>", "first", "<|end|>", "<|assistant|>"])
    words = ["<|end|>", "<|user|>", "second", "<|end|>", "<|assistant|>"]
    second = tokenizer.convert_tokens_to_ids(words)
    assert made["prompt_ids"] == [first] * 4
    assert made["env_reward"] == [1.0] * 4
    for ids, mask in zip(made["completion_ids"], made["env_mask"], strict=True):
        zeros = [i for i, one in enumerate(mask) if not one]
        assert zeros == list(range(zeros[0], zeros[0] + len(zeros)))
        # What the environment said, with the end of the turn unless the model sampled it.
        ended = ids[zeros[0] - 1] == tokenizer.eos_token_id
        assert [ids[i] for i in zeros] == (second[1:] if ended else second)
        turns = [tuple(ids[: zeros[0]]), tuple(ids[zeros[-1] + 1 :])]
        assert (turns[0], tuple(first)) in sampled
        assert (turns[1], (*first, *ids[: zeros[-1] + 1])) in sampled


def test_the_total_length_is_bounded_and_the_episode_truncated(tmp_path):
    with TRLRollouts(Recorder, kind="say", size=4, chat=CHAT) as rollouts:
        trainer = make_trainer(rollouts, tmp_path, rows=rollouts.rows(number=8))
        made = rollouts(prompts(0, 0, 0, 0), trainer)

    assert all(len(ids) <= 12 for ids in made["completion_ids"])
    assert all(
        len(one) == len(ids)
        for one, ids in zip(made["env_mask"], made["completion_ids"], strict=True)
    )
    assert {episode.end.reason for episode in rollouts.episodes} == {"truncated"}


def test_the_length_of_the_model_s_context_is_a_limit_too(tmp_path):
    with TRLRollouts(Recorder, kind="say", size=4, chat=CHAT) as rollouts:
        trainer = make_trainer(rollouts, tmp_path, max_completion_length=1000)
        trainer.model.config.max_position_embeddings = 30
        made = rollouts(prompts(0, 0), trainer)

    assert all(len(ids) <= 30 - 4 for ids in made["completion_ids"])


def test_a_killed_worker_costs_no_episode_and_no_reward(tmp_path):
    marker = tmp_path / "killed"
    with TRLRollouts(
        Mortal, size=8, workers=2, backend="process", chat=CHAT, max_turn_tokens=2,
        marker=str(marker),
    ) as rollouts:  # fmt: skip
        trainer = make_trainer(rollouts, tmp_path / "out")
        trainer.train()
        first = trainer.state.log_history[0]

    assert marker.exists()
    assert first["reward"] == 1.0
    assert first["reward_std"] == 0.0  # a reward of 0 for what was lost would show
    assert first["episodes/unusable"] == 0.0


def test_an_episode_that_cannot_be_played_is_left_out_of_its_group(tmp_path):
    with TRLRollouts(
        Mortal, size=8, chat=CHAT, max_turn_tokens=2, attempts=2, broken=True
    ) as rollouts:
        rows = [{"prompt": one} for one in prompts(0, 1)]
        trainer = make_trainer(rollouts, tmp_path, rows=rows, shuffle_dataset=False)
        advantages = []
        compute = trainer._generate_and_score_completions

        def remember(inputs):
            made = compute(inputs)
            advantages.append(made["advantages"])
            return made

        trainer._generate_and_score_completions = remember
        seeds_of_one_group = prompts(0, 1, 2, 3)
        made = rollouts(seeds_of_one_group, trainer)
        trainer.train()
        first = trainer.state.log_history[0]

    assert made["env_reward"] == [1.0, None, 1.0, None]
    assert made["env_mask"][1] == [0]
    assert first["reward"] == 1.0  # the mean of the usable
    assert all(torch.equal(one, torch.zeros_like(one)) for one in advantages)


def test_rows_are_tasks_or_seeds():
    with TRLRollouts("gsm8k-v0", size=1) as rollouts:
        rows = rollouts.rows("test", 2)
    with TRLRollouts(Mortal, size=1) as endless, pytest.raises(ew.errors.OptionError):
        endless.rows()

    assert [row["prompt"][0]["content"] for row in rows] == ["test-0", "test-1"]


def test_a_task_named_by_a_prompt_is_played(tmp_path):
    with TRLRollouts("gsm8k-v0", size=2, max_turn_tokens=2) as rollouts:
        trainer = make_trainer(rollouts, tmp_path, rows=rollouts.rows("train", 8))
        rollouts([[{"role": "user", "content": name}] for name in ("train-3", "test-1")], trainer)

    assert [episode.task_id for episode in rollouts.episodes] == ["train-3", "test-1"]


def test_unknown_options_of_the_chat_are_refused():
    with pytest.raises(ew.errors.OptionError, match="'sytem' is not an option"):
        TRLRollouts(Mortal, size=1, chat={"sytem": "x"})


def test_several_agents_are_refused_for_whole_episodes_too():
    with pytest.raises(ew.errors.DefinitionError, match="has several agents"):
        TRLRollouts("tictactoe-v0", size=1)


def test_a_picture_is_refused_where_only_text_is_read(tmp_path):
    with TRLRollouts(Photographer, size=1) as rollouts:
        trainer = make_trainer(rollouts, tmp_path, rows=rollouts.rows(number=8))
        with pytest.raises(ew.errors.OptionError, match="shows an image"):
            rollouts(prompts(0), trainer)


def test_an_episode_that_nobody_scored_has_no_reward(tmp_path):
    with TRLRollouts(Unscored, size=1, chat=CHAT) as rollouts:
        trainer = make_trainer(rollouts, tmp_path, rows=rollouts.rows(number=8))
        made = rollouts(prompts(0), trainer)

    assert made["env_reward"] == [None]


def tool_tokenizer():
    made = byte_tokenizer()
    made.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    return made


# environment_factory


def test_the_class_has_the_tools_of_the_environment_and_nothing_else_is_public():
    made = trl_environment(Recorder("union"))

    public = [name for name, _ in inspect.getmembers(made, inspect.isfunction) if name[0] != "_"]
    assert public == ["get_reward", "reset", "take", "walk"]


def test_tools_are_described_as_transformers_reads_them():
    from transformers.utils import get_json_schema

    tool = get_json_schema(trl_environment(Recorder("guess"))().guess)

    assert tool["function"] == {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {
            "type": "object",
            "properties": {
                "number": {"type": "integer", "description": "The guess."},
                "why": {"type": "string", "description": "The reason."},
            },
            "required": ["number"],
        },
        "return": {"type": "string", "description": "What is seen next."},
    }


def test_an_episode_is_played_by_its_tools_until_it_ends():
    env = trl_environment(Mortal, **CHAT)()

    assert env.reset(seed=3, prompt=[], other=1) == "first"
    assert env.say(text="no") == "second"
    assert env.get_reward() == 0.0
    env.say(text="yes")
    assert env.get_reward() == 1.0
    with pytest.raises(ValueError, match="The episode is over"):
        env.say(text="yes")


def test_a_lost_episode_has_no_reward():
    env = trl_environment(Mortal, broken=True)()
    env.reset(seed=1)

    with pytest.raises(ValueError, match="lost"):
        env.say(text="yes")

    assert env.get_reward() is None
    assert env.reset(seed=2)
    assert env.get_reward() == 0.0


def test_an_episode_that_nobody_scored_has_no_reward_from_its_tools_either():
    env = trl_environment(Unscored)()
    env.reset()

    with pytest.raises(ValueError, match="not scored"):
        env.say(text="x")

    assert env.get_reward() is None


def test_pictures_are_blocks_of_images():
    env = trl_environment(Photographer)()

    first, second = env.reset(), env.say(text="look")

    assert [[block["type"] for block in shown] for shown in (first, second)] == [
        ["text", "image"],
        ["text", "image"],
    ]
    assert [shown[0]["text"] for shown in (first, second)] == ["a wall", "a wall"]
    assert all(isinstance(shown[1]["image"], Image.Image) for shown in (first, second))
    assert [shown[1]["image"].getpixel((3, 3)) for shown in (first, second)] == [
        (0, 0, 0),
        (1, 1, 1),
    ]


def test_a_call_that_is_no_action_is_an_error_for_the_model():
    env = trl_environment(Recorder("guess"))()
    env.reset()

    assert "99 is not between 0 and 9" in env.guess(number=99)
    assert env.get_reward() == 0.0


def test_several_agents_are_refused():
    with pytest.raises(ew.errors.DefinitionError, match="has several agents"):
        trl_environment("tictactoe-v0")


@dataclass
class Reset(ew.Action):
    """Start over."""


def test_a_tool_that_trl_would_call_itself_is_refused():
    env = Recorder("guess")
    env.action_spec = Reset

    with pytest.raises(ew.errors.DefinitionError, match="the tool 'reset', which TRL calls itself"):
        trl_environment(env)


def test_the_trainer_s_own_loop_plays_with_the_tools(tmp_path):
    tokenizer = tool_tokenizer()
    call = '<tool_call>\n{"name": "guess", "arguments": {"number": 3}}\n</tool_call><|im_end|>'
    trainer = GRPOTrainer(
        tiny_language_model(tokenizer, max_length=2048),
        args=config(tmp_path, max_completion_length=600, max_tool_calling_iterations=2),
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": [{"role": "user", "content": "Go."}]}] * 8
        ),
        processing_class=tokenizer,
        environment_factory=trl_environment(SlowTool, seconds=0.0),
    )
    ids = tokenizer(call, add_special_tokens=False)["input_ids"]

    def generate(input_ids, **kwargs):
        rest = torch.tensor([ids] * len(input_ids))
        return torch.cat([input_ids, rest], 1)

    trainer.model.generate = generate
    trainer.train()

    assert [tool.__name__ for tool in trainer.tools] == ["guess"]
    assert trainer.state.log_history[0]["reward"] == 2.0
    assert trainer.state.log_history[0]["tools/failure_frequency"] == 0.0


def test_a_reply_is_followed_by_the_same_tokens_as_in_a_whole_conversation():
    tokenizer = tool_tokenizer()
    said = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "left"},
        {"role": "user", "content": "You see a wall."},
    ]
    whole = encode(tokenizer, render(tokenizer, said, []))
    first = encode(tokenizer, render(tokenizer, said[:1], []))
    reply = tokenizer("left<|im_end|>", add_special_tokens=False)["input_ids"]

    joined = first + reply + between_replies(tokenizer, said[2:], reply[-1])

    assert joined == whole
    assert first + reply[:-1] + between_replies(tokenizer, said[2:], reply[-2]) == whole


# The demonstration


def train(folder, *options):
    small = ["--num-envs", "16", "--evaluation-episodes", "16", "--checkpoint-every", "1"]
    return main(["--run-dir", str(folder), *small, "--json", *options])


def updates(folder):
    log = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["update"], line["return"]) for line in log if line["type"] == "update"]


def trained(folder, capsys, *options):
    """Return the share of right moves that a short run of the demonstration ends with."""
    assert main(["--run-dir", str(folder), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["trained"]["success"]


@pytest.mark.timeout(600)
def test_the_demonstration_learns_more_than_chance(tmp_path, capsys):
    assert trained(tmp_path / "run", capsys, "--episodes", "2560") > 0.5


@pytest.mark.timeout(300)
def test_the_demonstration_falls_below_chance_with_the_sign_flipped(tmp_path, capsys):
    assert trained(tmp_path / "run", capsys, "--episodes", "640", "--reward-sign", "-1") < 0.15


def test_a_run_that_is_resumed_continues_as_if_it_had_not_stopped(tmp_path, capsys):
    assert train(tmp_path / "whole", "--episodes", "64", "--record") == 0
    assert train(tmp_path / "parts", "--episodes", "32") == 0
    capsys.readouterr()

    assert train(tmp_path / "parts", "--episodes", "64", "--resume") == 0

    summary = json.loads(capsys.readouterr().out)
    assert summary["updates"] == 4
    assert summary["random"]["episodes"] == 16
    assert (tmp_path / "parts/metrics.png").exists()
    assert updates(tmp_path / "parts") == updates(tmp_path / "whole")
    assert len(ew.load(tmp_path / "whole")) == 64 + 2 * 16


def test_a_batch_that_holds_no_whole_group_is_refused(tmp_path, capsys):
    assert train(tmp_path / "run", "--group-size", "5") == 2
    assert "must be a multiple of --group-size 5" in capsys.readouterr().err
