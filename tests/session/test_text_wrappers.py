"""Texts as a conversation, and as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from servers import served

import envweave as ew
from envweave.envs.echo_env import EchoEnvironment
from envweave.errors import ActionError, DefinitionError, OptionError
from envweave.testing import EnvironmentConformance, ScriptedAgents

READY = {"role": "user", "content": "Echo environment ready!"}


class Upper(ew.Environment):
    """Repeats an action twice in capitals; refuses only a blank."""

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.count_of_steps = 0
        return "start", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == " ":
            raise ActionError("action: a blank says nothing")
        self.count_of_steps += 1
        return (
            "" if self.count_of_steps == 2 else action.upper(),
            1.0,
            self.count_of_steps == 2,
            False,
            {},
        )


class AsyncUpper(ew.Environment):
    async def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        return "start", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action.upper(), 1.0, False, False, {}


class Letters:
    """A tokenizer with an id for each pair of letters too, and a mark for the start and the end."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
        ids = [1000 * ord(pair[0]) + ord(pair[-1]) * (len(pair) - 1) for pair in pairs]
        return [1, *ids] if add_special_tokens else ids

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        texts = {1: "<s>", 2: "</s>"}
        if skip_special_tokens:
            ids = [one for one in ids if one not in texts]
        return "".join(
            texts.get(one) or chr(one // 1000) + (chr(one % 1000) if one % 1000 else "")
            for one in ids
        )


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


class TestChatWrapper(EnvironmentConformance):
    def make_environment(self) -> ew.ChatWrapper:
        return ew.ChatWrapper(Upper(), "Speak up.")

    def episode(self) -> list[Any]:
        return ["hello", {"role": "assistant", "content": "bye"}]


class TestTokenizerWrapper(EnvironmentConformance):
    def make_environment(self) -> ew.TokenizerWrapper:
        return ew.TokenizerWrapper(Upper(), Letters())

    def episode(self) -> list[Any]:
        return [Letters().encode("hello"), Letters().encode("bye")]


def test_a_chat_shows_the_conversation_so_far() -> None:
    with ew.make(ew.ChatWrapper(EchoEnvironment(), system_prompt="Be brief.")) as env:
        began = env.reset()
        by_text = env.step("hi")
        by_message = env.step({"role": "assistant", "content": "yo!"})

    system = {"role": "system", "content": "Be brief."}
    assert began.observation == [system, READY]
    assert by_text.observation == [system, READY, *messages("", "hi", "hi")[1:]]
    assert by_message.observation == [*by_text.observation, *messages("", "yo!", "yo!")[1:]]
    assert (by_text.reward, by_message.reward) == (0.2, 0.3)


def test_a_chat_starts_over_with_each_episode_and_an_empty_text_adds_no_message() -> None:
    with ew.make(ew.ChatWrapper(Upper()), autoreset=True) as env:
        env.reset()
        env.step("a")
        last = env.step("b")

    assert last.observation == messages("start", "a", "A", "b")
    assert last.current == messages("start")


def test_a_chat_whose_first_text_is_empty_begins_with_the_system_prompt_alone() -> None:
    with ew.make(ew.ChatWrapper(Quiz(), "Choose.", observation_field="hint")) as env:
        began = env.reset(options={"hint": ""})

    assert began.observation == [{"role": "system", "content": "Choose."}]


def test_past_observations_do_not_change() -> None:
    wrapped = ew.ChatWrapper(EchoEnvironment())

    first = wrapped.reset().observation
    wrapped.step("hi")

    assert first == [READY]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"role": "user", "content": "hi"}, "assistant"),
        ({"role": "assistant"}, "content"),
        (5, "5"),
        (" ", "a blank says nothing"),
    ],
)
def test_a_refused_message_is_not_part_of_the_conversation(action, words) -> None:
    with ew.make(ew.ChatWrapper(Upper())) as env:
        env.reset()

        with pytest.raises(ActionError, match=words):
            env.step(action)

        assert env.step("a").observation == messages("start", "a", "A")


def test_ids_of_an_action_are_kept_as_they_are() -> None:
    tokenizer = Letters()
    odd = [1000 * ord("h"), 1000 * ord("i"), 2]  # as the tokenizer would never encode it
    assert tokenizer.encode(tokenizer.decode(odd[:2]), add_special_tokens=False) != odd[:2]

    with ew.make(ew.TokenizerWrapper(EchoEnvironment(), tokenizer)) as env:
        began = env.reset()
        result = env.step(odd)

    assert began.observation == tokenizer.encode(READY["content"])
    shown = tokenizer.encode("hi", add_special_tokens=False)
    assert result.observation == [*began.observation, *odd, *shown]
    assert result.reward == 0.2  # of "hi", without the mark for the end


def test_any_object_with_encode_and_decode_is_a_tokenizer() -> None:
    class Plain:
        def encode(self, text: str) -> Any:
            return type("Encoding", (), {"ids": [ord(letter) for letter in text]})()

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    with ew.make(ew.TokenizerWrapper(Upper(), Plain())) as env:
        began = env.reset()
        result = env.step([97, 98])

        with pytest.raises(ActionError, match=r"\[-1\] cannot be decoded"):
            env.step([-1])

    assert began.observation == [ord(letter) for letter in "start"]
    assert result.observation == [*began.observation, 97, 98, 65, 66]


def test_coroutines_are_wrapped_too() -> None:
    with ew.make(ew.ChatWrapper(AsyncUpper())) as env:
        env.reset()

        assert env.step("a").observation == messages("start", "a", "A")


@pytest.mark.parametrize("how", [{}, {"mode": "threads"}, {"autoreset": True}])
def test_conversations_of_a_vector_are_kept_apart(how: dict[str, Any]) -> None:
    with ew.make_vector(lambda: ew.ChatWrapper(Upper()), num_envs=2, **how) as venv:
        venv.reset()
        batch = venv.step(["a", {"role": "assistant", "content": "bb"}])

    assert batch.current == [messages("start", "a", "A"), messages("start", "bb", "BB")]


def test_ids_of_a_vector_may_differ_in_length() -> None:
    with ew.make_vector(lambda: ew.TokenizerWrapper(Upper(), Letters()), num_envs=2) as venv:
        began = venv.reset()
        batch = venv.step([Letters().encode("ab"), Letters().encode("abcde")])

    lengths = [
        len(now) - len(before) for now, before in zip(batch.current, began.current, strict=True)
    ]
    assert lengths == [3, 7]


def test_a_chat_is_served() -> None:
    with served(lambda: ew.ChatWrapper(EchoEnvironment())) as url, ew.make(url) as env:
        env.reset()

        assert env.step("hi").observation == [READY, *messages("", "hi", "hi")[1:]]


def test_the_transform_of_the_environment_inside_sees_its_own_observations() -> None:
    def prefer_short(observation: ew.Observation) -> ew.Observation:
        if observation.reward is not None:
            observation.add_reward("length", -observation.message_length)
        return observation

    wrapped = ew.ChatWrapper(ew.TimeLimit(EchoEnvironment(), max_steps=1))
    wrapped.transform = prefer_short
    with ew.make(wrapped) as env:
        env.reset()
        result = env.step("hi")

    assert result.reward_parts == {"base": 0.2, "length": -2.0}
    assert result.reward == pytest.approx(-1.8)
    assert result.truncated


@dataclass
class Pair(ew.Observation):
    question: str
    hint: str


@dataclass
class Choice(ew.Action):
    letter: Literal["a", "b"]


class Quiz(ew.Environment):
    def reset(self, *, seed: int | None = None, options: dict[str, str] | None = None) -> Pair:
        return Pair("a or b?", **(options or {"hint": "not a"}))

    def step(self, action: Choice) -> Pair:
        return Pair("thanks", "", reward=float(action.letter == "b"), done=True)


def test_a_field_can_be_named_where_there_are_several_and_a_choice_of_texts_is_one() -> None:
    with ew.make(ew.ChatWrapper(Quiz(), observation_field="question")) as env:
        env.reset()
        with pytest.raises(ActionError, match="'c' is not one of 'a', 'b'"):
            env.step("c")
        result = env.step("b")

    assert (result.observation, result.reward) == (messages("a or b?", "b", "thanks"), 1.0)


class Binary(ew.Environment):
    observation_spec = action_spec = bytes

    def reset(self) -> bytes:
        return b""

    def step(self, action: bytes) -> bytes:
        return action


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ew.ChatWrapper(Quiz()), "text fields question, hint.*observation_field=…"),
        (lambda: ew.ChatWrapper(Quiz(), observation_field="qestion"), "Did you mean 'question'"),
        (lambda: ew.ChatWrapper(ew.examples.CounterEnv()), "has no text"),
        (lambda: ew.ChatWrapper(Binary()), "Binary's observation has no text"),
        (lambda: ew.TokenizerWrapper(ScriptedAgents(), Letters()), "is for one agent"),
    ],
)
def test_an_environment_without_one_text_is_refused(make, words) -> None:
    with pytest.raises(OptionError, match=words):
        make()


def test_a_non_environment_is_refused() -> None:
    with (
        ew.make("echo-v0") as made,
        pytest.raises(DefinitionError, match=r"got Env.*ew\.make\(ChatWrapper\(MyEnvironment"),
    ):
        ew.ChatWrapper(made)
