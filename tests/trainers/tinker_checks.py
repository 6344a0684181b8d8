"""Run by test_trainers.py, where Tinker's cookbook is installed."""

import asyncio
import pickle
import threading

import pytest
from byte_tokenizers import byte_tokenizer
from environments.replies import Recorder
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import ToolCall
from tinker_cookbook.rl.data_processing import compute_advantages
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.tokenizer_utils import register_tokenizer

import envweave as ew
from envweave.errors import DefinitionError, EnvironmentFailure, OptionError
from envweave.trainers.tinker_cookbook import TinkerEnv, TinkerGroup
from envweave.trainers.tinker_dataset import TinkerDatasetBuilder


def one_at_a_time(encode):
    """The cookbook encodes in several threads, which a tokenizer of transformers cannot do."""
    lock = threading.Lock()

    def locked(*args, **kwargs):
        with lock:
            return encode(*args, **kwargs)

    return locked


MORTAL = "pkg://environments.replies:Mortal"
TOKENIZER = byte_tokenizer()
TOKENIZER._encode_plus = one_at_a_time(TOKENIZER._encode_plus)
register_tokenizer("tests/bytes", lambda: TOKENIZER)


class Says(TokenCompleter):
    """A policy that says the same each time, and keeps its prompts."""

    def __init__(self, text="yes<|im_end|>"):
        self.tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        self.prompts = []

    async def __call__(self, model_input, stop, *, max_tokens=None):
        self.prompts.append(TOKENIZER.decode(model_input.to_ints()))
        return TokensWithLogprobs(
            tokens=self.tokens, maybe_logprobs=[-0.1] * len(self.tokens), stop_reason="stop"
        )


def group(env=MORTAL, size=4, **options):
    return TinkerGroup(env, "tests/bytes", "qwen3_instruct", size, **{"seed": 0, **options})


def test_a_group_is_played_in_conversations():
    policy = Says()
    played = asyncio.run(do_group_rollout(group(options={"render": "{text}"}), policy))

    assert played.get_total_rewards() == [1.0] * 4
    assert [len(one.transitions) for one in played.trajectories_G] == [2] * 4
    assert {one.stop_reason for one in played.trajectories_G} == {"completed"}
    first = "<|im_start|>user\nfirst<|im_end|>\n<|im_start|>assistant\n"
    said = f"{first}yes<|im_end|>\n<|im_start|>user\nsecond<|im_end|>\n<|im_start|>assistant\n"
    assert sorted(set(policy.prompts)) == [first, said]


def test_a_killed_worker_s_episode_is_played_again_and_the_group_mean_is_right(tmp_path):
    marker = tmp_path / "killed"
    builder = group(make={"backend": "process", "marker": str(marker)})

    played = asyncio.run(do_group_rollout(builder, Says(), RetryOnFailure(max_retries=4)))

    assert marker.exists()
    assert played.rollout_errors
    assert played.rollout_errors[0].error_type == "EnvironmentFailure"
    assert played.get_total_rewards() == [1.0] * 4
    assert [one.tolist() for one in compute_advantages([played])] == [[0.0] * 4]


def test_its_episodes_can_be_recorded(tmp_path):
    asyncio.run(do_group_rollout(group(make={"record": tmp_path}), Says()))

    assert [one.reward for one in ew.load(tmp_path).summaries] == [1.0] * 4


def test_a_failed_episode_raises_and_has_no_reward():
    builder = group(seed=1, make={"broken": True})

    with pytest.raises(EnvironmentFailure, match="the disk is gone"):
        asyncio.run(do_group_rollout(builder, Says()))


def test_an_episode_that_nobody_scored_raises_and_has_no_reward():
    builder = group("pkg://environments.replies:Unscored", seed=None)

    with pytest.raises(EnvironmentFailure, match="not scored"):
        asyncio.run(do_group_rollout(builder, Says()))


def test_several_agents_are_refused():
    with pytest.raises(DefinitionError, match="'tictactoe-v0' has several agents"):
        asyncio.run(do_group_rollout(group("tictactoe-v0"), Says()))


def test_a_builder_pickles_as_an_id_and_a_backend():
    builder = pickle.loads(pickle.dumps(group(make={"backend": "process"})))

    played = asyncio.run(do_group_rollout(builder, Says()))

    assert played.get_total_rewards() == [1.0] * 4
    assert builder.logging_tags() == [MORTAL]


def test_environments_that_were_not_played_to_the_end_are_closed_too():
    async def play():
        builder = group()
        first, _, *_ = await builder.make_envs()
        await first.initial_observation()
        opened = builder._made[0]._opened
        await builder.cleanup()
        await builder.cleanup()
        return builder, opened

    builder, opened = asyncio.run(play())

    assert builder._made == []
    assert opened is not None


def test_invalid_replies_cost_turns_and_are_counted():
    builder = group(
        "pkg://environments.replies:Recorder",
        options={"max_invalid": 2},
        make={"kind": "guess"},
        seed=None,
        size=1,
    )

    played = asyncio.run(do_group_rollout(builder, Says("hm<|im_end|>")))

    (trajectory,) = played.trajectories_G
    assert [one.metrics["invalid_replies"] for one in trajectory.transitions] == [1.0, 2.0]
    assert trajectory.stop_reason == "max_turns"


def test_tool_calls_of_a_renderer_are_actions():
    call = ToolCall(function=ToolCall.FunctionBody(name="guess", arguments='{"number": 3}'), id="c")

    async def play():
        env = TinkerEnv(Recorder, options={"use_tools": True}, make={"kind": "guess"})
        await env.initial_observation()
        step = await env.step({"role": "assistant", "content": "", "tool_calls": [call]})
        await env.close()
        return step

    step = asyncio.run(play())

    assert step.reward == 1.0
    assert [one["role"] for one in step.next_messages] == ["user", "assistant", "tool"]
    assert step.next_messages[1]["tool_calls"][0].function.name == "guess"


def test_a_dataset_has_the_tasks_of_a_split_or_seeds():
    def build(env, **options):
        builder = TinkerDatasetBuilder(
            env=env, model_name="tests/bytes", renderer_name="qwen3_instruct", batch_size=2,
            group_size=4, **options,
        )  # fmt: skip
        return asyncio.run(builder())

    train, test = build("gsm8k-v0", batches=3, split="train", test_split="test")
    seeds, none = build(MORTAL, batches=2)
    later, _ = build(MORTAL, batches=1, first_seed=7)

    assert (len(train), len(test), len(seeds), none) == (3, 3, 2, None)
    assert [one.task_id for one in train.get_batch(1)] == ["train-2", "train-3"]
    assert [one.seed for one in seeds.get_batch(1)] == [2, 3]
    assert [one.seed for one in later.get_batch(0)] == [7, 8]
    with pytest.raises(OptionError, match="Pass batches="):
        build(MORTAL)
