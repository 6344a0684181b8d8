"""`chat`: environments as conversations."""

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from environments.replies import Recorder, Say, Seen
from servers import served

import envweave as ew
from envweave.agents import Truncate
from envweave.conversation import ChatAction, ChatObservation, ChatToolCall, TurnMessage
from envweave.errors import ActionError, OptionError, ResetNeededError
from envweave.examples import TicTacToeEnv

GUESS = {"type": "function", "id": "c1", "function": {"name": "guess", "arguments": "{}"}}


def test_a_text_environment_is_a_conversation_of_user_and_assistant():
    with ew.chat("echo-v0", render="{echoed_message}", system="You echo.") as chat:
        chat.reset()
        result = chat.step("hello")

        assert chat.messages() == [
            {"role": "system", "content": "You echo."},
            {"role": "user", "content": "Echo environment ready!"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "hello"},
        ]
        assert [one.content for one in result.observation.messages] == ["hello"]
        assert chat.tools() == []


def test_the_author_s_render_decides_what_is_shown():
    @dataclass
    class Board(ew.Observation):
        cells: list[int] = field(default_factory=list)

        def render(self) -> str:
            return "".join(".XO"[cell] for cell in self.cells)

    class Env(ew.Environment):
        def reset(self) -> Board:
            return Board(cells=[0, 1, 2])

        def step(self, action: str) -> Board:
            return Board(cells=[1, 1, 2])

    with ew.chat(Env) as chat:
        chat.reset()

        assert chat.messages() == [{"role": "user", "content": ".XO"}]


def test_the_form_of_replies_is_described_unless_tools_are_offered():
    told, offered = ew.chat(Recorder("union")), ew.chat(Recorder("union"), use_tools=True)
    told.reset()
    offered.reset()

    assert told.tools() == []
    assert "as JSON that fits this schema" in told.messages()[0]["content"]
    assert offered.messages()[0]["role"] == "user"
    assert [one["function"]["name"] for one in offered.tools()] == ["walk", "take"]
    assert offered.tools()[0]["function"] == {
        "name": "walk",
        "description": "Walk somewhere.",
        "parameters": {
            "title": "Walk",
            "type": "object",
            "properties": {"to": {"enum": ["left", "right"]}},
            "required": ["to"],
            "additionalProperties": False,
        },
    }
    told.close()
    offered.close()


def test_fields_are_described_by_the_docstring_of_the_action():
    with ew.chat(Recorder("guess"), use_tools=True) as chat:
        chat.reset()
        (tool,) = chat.tools()

    assert tool["function"]["description"] == "Guess the number."
    assert tool["function"]["parameters"]["properties"]["number"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 9,
        "description": "The guess.",
    }


def test_a_served_environment_offers_the_same_tools():
    with (
        ew.chat(Recorder("guess"), use_tools=True) as here,
        served(Recorder("guess")) as url,
        ew.chat(url, use_tools=True) as there,
    ):
        here.reset()
        there.reset()

        assert there.tools() == here.tools()


def test_the_answer_to_a_tool_call_is_a_message_of_that_tool():
    env = Recorder("union")
    with ew.chat(env, use_tools=True) as chat:
        chat.reset()
        chat.step(ChatAction(tool_calls=[ChatToolCall(name="take", arguments={"item": "lamp"})]))
        chat.step({"content": None, "tool_calls": [{**GUESS, "id": "c9"}]})

        assert [(one["role"], one.get("tool_call_id")) for one in chat.messages()] == [
            ("user", None),
            ("assistant", None),
            ("tool", "call_1"),
            ("assistant", None),
            ("tool", "c9"),
        ]
        assert chat.messages()[1]["tool_calls"][0]["function"]["arguments"] == '{"item": "lamp"}'
        assert "There is no tool 'guess'" in chat.messages()[-1]["content"]


def test_invalid_replies_cost_steps_and_truncate():
    env = Recorder("guess")
    with ew.chat(env, max_invalid=2, invalid_reward=-0.5) as chat:
        chat.reset()
        results = [chat.step(reply) for reply in ("hm", '{"number": 1}', "hm")]

        assert [one.step_index for one in results] == [1, 2, 3]
        assert [one.reward for one in results] == [-0.5, 1.0, -0.5]
        assert [one.metrics["invalid_replies"] for one in results] == [1, 1, 2]
        assert results[-1].truncated
        assert not results[-1].terminated
        assert results[-1].end == ew.EpisodeEnd("truncated", "agent", "2 replies were not actions.")
        assert results[-1].valid
        with pytest.raises(ResetNeededError):
            chat.step('{"number": 1}')
        assert chat.reset().metrics == {"invalid_replies": 0}


def test_an_action_that_the_environment_refuses_costs_a_step_too():
    class Picky(ew.Environment):
        action_spec = Say
        observation_spec = Seen

        def reset(self):
            return Seen(text="begin")

        def step(self, action):
            if action.text == "no":
                raise ActionError("You may not say no.")
            return Seen(text="fine", reward=1.0, done=True)

    with ew.chat(Picky) as chat:
        chat.reset()
        refused, taken = chat.step("no"), chat.step("yes")

    assert refused.info["invalid_reply"] == "You may not say no."
    assert (refused.reward, refused.done) == (0.0, False)
    assert (taken.step_index, taken.reward, taken.terminated) == (2, 1.0, True)


@pytest.mark.parametrize("reply", [5, None, ["hello"], {"x": "hello"}.items()])
def test_a_value_that_is_not_a_reply_is_refused_and_costs_nothing(reply):
    env = Recorder("say")
    with ew.chat(env) as chat:
        chat.reset()

        with pytest.raises(ActionError, match="A reply must be"):
            chat.step(reply)

        assert chat.step("hello").step_index == 1


def test_a_reply_may_be_replaced_by_the_end_of_the_episode():
    with ew.chat(Recorder("say")) as chat:
        chat.reset()
        result = chat.step(Truncate("no more tokens"))

    assert result.truncated
    assert result.end == ew.EpisodeEnd("truncated", None, "no more tokens")


def test_each_agent_has_its_own_conversation():
    with ew.chat(TicTacToeEnv, system="Play.") as chat:
        first = chat.reset(seed=1)
        second = chat.step({"x": '{"cell": 0}'})
        refused = chat.step({"o": "hm"})
        third = chat.step({"o": "4"})

        assert [
            [need.agent_id for need in one.needs] for one in (first, second, refused, third)
        ] == [
            ["x"],
            ["o"],
            ["o"],
            ["x"],
        ]
        assert refused.needs[0].action_mask is not None
        assert [one["role"] for one in chat.messages("x")] == [
            "system",
            "user",
            "assistant",
            "user",
        ]
        assert '"board":[[1,0,0],[0,0,0],[0,0,0]]' in chat.messages("o")[1]["content"]
        with pytest.raises(OptionError, match="has no agent 'y'"):
            chat.messages("y")
        with pytest.raises(ActionError, match="waits for the replies of x"):
            chat.step({"o": "4"})


def test_agents_that_act_together_wait_for_the_one_that_must_reply_again():
    with ew.chat("harvest-v0") as chat:
        first = chat.reset(seed=1)
        agents = [need.agent_id for need in first.needs]
        replies = dict.fromkeys(agents, "1")

        refused = chat.step({**replies, agents[1]: "all of it"})
        taken = chat.step({agents[1]: "1"})

    assert [need.agent_id for need in refused.needs] == [agents[1]]
    assert refused.reward == {agents[1]: 0.0}
    assert set(taken.reward) == set(agents)
    assert taken.step_index == 2
    assert taken.info[agents[1]]["metrics"]["invalid_replies"] == 1


def test_images_are_shown_as_images():
    @dataclass
    class Camera(ew.Observation):
        picture: np.ndarray | None = None
        note: str = ""

    class Env(ew.Environment):
        def reset(self) -> Camera:
            return Camera(picture=np.full((16, 20, 3), 7, np.uint8), note="a wall")

        def step(self, action: str) -> Camera:
            return Camera(picture=np.zeros((3, 3, 3), np.uint8), note="a board")

    with ew.chat(Env) as chat:
        chat.reset()
        chat.step("look")
        text, image = chat.messages()[0]["content"]

        assert text == {"type": "text", "text": "a wall"}
        kind, _, data = image["image_url"]["url"].partition(",")
        assert kind == "data:image/png;base64"
        pixels = pytest.importorskip("matplotlib.image").imread(_file(base64.b64decode(data)))
        assert pixels.shape == (16, 20, 3)
        assert np.allclose(pixels * 255, 7)
        assert isinstance(chat.messages()[-1]["content"], str)  # too small to be a picture


def _file(data):
    import io

    return io.BytesIO(data)


@dataclass
class Ask(ew.Action):
    question: str


class Phone(ew.Environment):
    """Asks its caller to run a tool in each step."""

    def reset(self) -> Seen:
        return Seen(text="ring")

    def step(self, action: Ask) -> Seen:
        self.emit(ew.ToolCallRequest("c1", "look_up", {"name": action.question}))
        return Seen(text="wait", reward=0.25)

    def answer(self, result: ew.ToolResult) -> Seen:
        return Seen(text=f"heard {result.value or result.error}", reward=0.5, done=True)


def test_tool_calls_of_the_environment_are_answered_by_functions():
    with ew.chat(Phone, functions={"look_up": lambda name: f"{name}: 555"}) as chat:
        chat.reset()
        result = chat.step("Ann")

        assert result.step_index == 1
        assert result.reward == 0.75
        assert chat.messages()[-1]["content"] == "heard Ann: 555"


class Conference(ew.MultiAgentEnvironment):
    """Asks its caller to run a tool twice in each step."""

    possible_agents = ("one", "two")
    action_spec: ClassVar[Any] = {"one": str, "two": str}
    observation_spec: ClassVar[Any] = {"one": str, "two": str}

    def reset(self):
        self._asked = 0
        return self._told(0.0, is_over=False)[0], {}

    def step(self, actions):
        self._ask()
        return self._told(1.0, is_over=False)

    def answer(self, result):
        if self._asked < 2:
            self._ask()
            return self._told(0.5, is_over=False)
        return self._told(0.25, is_over=True)

    def _ask(self):
        self._asked += 1
        self.emit(ew.ToolCallRequest(f"c{self._asked}", "look_up", {}))

    def _told(self, earned, *, is_over):
        agents = self.possible_agents
        over = dict.fromkeys(agents, is_over)
        return (
            dict.fromkeys(agents, "heard"),
            {"one": earned, "two": 2 * earned},
            over,
            dict.fromkeys(agents, False),
            {},
        )


def test_what_several_agents_earn_while_tools_are_called_is_summed():
    with ew.chat(Conference, functions={"look_up": lambda: 1}) as chat:
        chat.reset()
        result = chat.step({"one": "x", "two": "y"})

    assert result.done
    assert result.reward == {"one": 1.75, "two": 3.5}
    assert result.end.rewards == {"one": 1.75, "two": 3.5}


def test_a_function_that_fails_is_an_answer_too():
    async def look_up(name: str) -> str:
        raise LookupError(name)

    async def play():
        async with ew.make_async(Phone) as env:
            chat = ew.chat(env, functions={"look_up": look_up})
            await chat.reset()
            await chat.step("Ann")
            return chat.messages()[-1]["content"]

    assert asyncio.run(play()) == "heard LookupError: Ann"


def test_without_a_function_the_model_is_asked():
    with ew.chat(Phone) as chat:
        chat.reset()
        asked = chat.step("Ann")
        result = chat.step("555")

        assert "asks you to run look_up" in asked.observation.messages[-1].content
        assert (asked.step_index, result.step_index) == (1, 1)
        assert chat.messages()[-1]["content"] == "heard 555"
        assert result.done


def test_an_environment_that_resets_itself_begins_a_new_conversation():
    env = ew.make("counter-v0", autoreset=True, done_at=1)
    with env:
        chat = ew.chat(env)
        chat.reset(seed=1)
        result = chat.step("1")

        assert result.done
        assert result.observation.messages[0].content == '{"value":1}'
        assert [one["content"] for one in chat.messages()][1:] == ['{"value":0}']
        assert chat.step("hm").step_index == 1


def test_a_conversation_of_a_wrapper_is_shown_as_it_is():
    from envweave.wrappers import ChatWrapper

    wrapped = ChatWrapper(Recorder("say"), "Be brief.")
    with ew.chat(wrapped) as chat:
        chat.reset()
        chat.step("hello")

        assert [one["role"] for one in chat.messages()] == ["system", "user", "assistant", "user"]


def test_code_is_shown_what_it_printed():
    env = ew.create_codeact_env(executor="inproc")
    with ew.chat(env) as chat:
        chat.reset()
        chat.step("```python\nprint(6 * 7)\n```")

        assert chat.messages()[-1] == {"role": "user", "content": "Printed:\n42"}
        assert "Python" in chat.messages()[0]["content"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_invalid": 0}, "max_invalid must be >= 1"),
        ({"render": 5}, "is neither a function"),
    ],
)
def test_options_are_checked(options, says):
    with pytest.raises(OptionError, match=says):
        ew.chat("echo-v0", **options)


def test_keywords_for_an_environment_that_exists_come_too_late():
    with ew.make("counter-v0") as env, pytest.raises(OptionError, match="comes too late"):
        ew.chat(env, done_at=3)


@pytest.mark.parametrize(
    ("render", "failure", "says"),
    [
        (lambda seen: 1 / 0, ew.errors.EnvironmentFailure, "ZeroDivisionError"),
        ("{valeu}", OptionError, "Its fields are: value"),
    ],
)
def test_a_render_that_fails_says_whose_failure_it_is(render, failure, says):
    with ew.chat("counter-v0", render=render) as chat, pytest.raises(failure, match=says):
        chat.reset()


def test_a_reply_is_the_action_itself_where_actions_are_replies():
    class Echo(ew.Environment):
        def reset(self) -> ChatObservation:
            return ChatObservation(messages=[TurnMessage(role="user", content="begin")])

        def step(self, action: ChatAction) -> ChatObservation:
            said = TurnMessage(role="user", content=f"You said {action.content}.")
            return ChatObservation(messages=[said], reward=1.0)

    chat = ew.chat(Echo)
    chat.reset()

    result = chat.step("hi")

    assert [one.content for one in result.observation.messages] == ["You said hi."]
    assert result.reward == 1.0
