"""The snippets by which CodeAct environments were first shown: only their imports have changed."""

from __future__ import annotations

import random

import pytest

import envweave as ew


def test_basic_usage(capsys):
    from envweave import CodeAction, create_codeact_env

    env = create_codeact_env()
    obs = env.reset()

    action = CodeAction(
        code="""
x = 10
y = 20
result = x * y
print(f"Result: {result}")
result  # Return value
"""
    )
    obs = env.step(action)
    print(f"Output: {obs.execution_result.stdout}")
    print(f"Return: {obs.execution_result.return_value}")
    env.close()

    assert capsys.readouterr().out == "Output: Result: 200\n\nReturn: 200\n"


def test_state_persists_over_the_steps_of_an_episode_and_not_beyond():
    from envweave import CodeAction, create_codeact_env

    env = create_codeact_env()
    env.reset()
    env.step(CodeAction(code="x = 5"))
    env.step(CodeAction(code="def double(n): return n * 2"))
    obs = env.step(CodeAction(code="double(x)"))
    assert obs.execution_result.return_value == 10

    env.reset()
    obs = env.step(CodeAction(code="double(x)"))
    env.close()

    assert not obs.execution_result.success
    assert obs.execution_result.exception_type == "NameError"


def test_math_is_already_imported():
    from envweave import CodeAction, create_codeact_env

    with create_codeact_env() as env:
        env.reset()

        assert env.step(CodeAction(code="math.sqrt(16)")).execution_result.return_value == 4.0


def test_errors_become_observations():
    from envweave import CodeAction, create_codeact_env

    with create_codeact_env() as env:
        env.reset()
        obs = env.step(CodeAction(code="1 / 0"))
        after = env.step(CodeAction(code="'still here'"))

    assert not obs.execution_result.success
    assert "ZeroDivisionError" in obs.stderr
    assert after.execution_result.return_value == "still here"


def test_with_mcp_tools():
    from envweave import CodeAction, create_mcp_environment

    env = create_mcp_environment()
    obs = env.reset()

    action = CodeAction(
        code="""
# File operations
file_write("/tmp/hello.txt", "Hello, World!")
content = file_read("/tmp/hello.txt")
print(content)
file_list("/tmp")
"""
    )
    obs = env.step(action)
    env.close()

    assert obs.execution_result.stdout == "Hello, World!\n"
    assert obs.execution_result.return_value == ["hello.txt"]
    assert [call.name for call in obs.execution_result.tool_calls] == [
        "file_write", "file_read", "file_list",
    ]  # fmt: skip


def test_rl_training_with_transforms():
    from envweave import CodeAction, create_codeact_env, create_math_env_transform

    env = create_codeact_env()
    env.transform = create_math_env_transform(expected_answer=42)

    obs = env.reset()
    obs = env.step(CodeAction(code="21 * 2"))
    right = obs.reward
    obs = env.step(CodeAction(code="21 * 3"))
    env.close()

    assert right > 0
    assert obs.reward < right


def test_the_first_step_starts_an_episode(capsys):
    from envweave import CodeAction, create_codeact_env, create_math_env_transform

    transform = create_math_env_transform(expected_answer=42)
    env = create_codeact_env()
    env.transform = transform

    action = CodeAction(code="21 * 2")
    obs = env.step(action)
    print(obs.reward)
    env.close()

    assert capsys.readouterr().out == "1.05\n"


def test_the_first_step_starts_an_episode_with_file_tools_too():
    from envweave import CodeAction, create_mcp_environment

    with create_mcp_environment() as env:
        obs = env.step(CodeAction(code="file_write('a.txt', 'hello'); kept = 1"))
        again = env.step(CodeAction(code="file_read('a.txt'), kept"))

    assert obs.execution_result.success
    assert again.execution_result.return_value in (("hello", 1), ["hello", 1])


def test_only_the_first_episode_starts_by_a_step_and_none_that_has_a_task():
    from envweave import CodeAction, Task, Tasks, create_codeact_env
    from envweave.codeact import NumericMatch
    from envweave.errors import ResetNeededError

    with create_codeact_env(grader=NumericMatch(42)) as env:
        assert env.step(CodeAction(code="final_answer(42)")).done
        with pytest.raises(ResetNeededError, match="after the end of its episode"):
            env.step(CodeAction(code="1"))
    tasks = Tasks({"train": [Task("product", data={"prompt": "What is 6 * 7?"})]})
    with (
        create_codeact_env(tasks=tasks) as env,
        pytest.raises(ResetNeededError, match="before its first episode"),
    ):
        env.step(CodeAction(code="42"))
    with (
        ew.make(create_codeact_env()) as env,
        pytest.raises(ResetNeededError, match="before its first episode"),
    ):
        env.step(CodeAction(code="42"))


def test_a_custom_tool():
    from envweave import CodeAction, ToolRegistry, create_codeact_env

    tools = ToolRegistry()
    tools.register("add", lambda a, b: a + b)

    with create_codeact_env(tools=tools) as env:
        obs = env.reset()
        assert obs.available_tools == ["add"]
        assert env.step(CodeAction(code="add(2, 3)")).execution_result.return_value == 5


def test_a_custom_transform_with_the_presets():
    from envweave import (
        CodeAction,
        CodeQualityTransform,
        CodeSafetyTransform,
        CompositeTransform,
        Observation,
        Transform,
        create_codeact_env,
    )

    class Brief(Transform):
        def __call__(self, observation: Observation) -> Observation:
            if 0 < len(observation.code) < 20:
                observation.add_reward("brief", 0.5)
            return observation

    env = create_codeact_env(
        transform=CompositeTransform([CodeSafetyTransform(), Brief(), CodeQualityTransform()])
    )
    env.reset()
    obs = env.step(CodeAction(code="sum([1, 2])"))
    unsafe = env.step(CodeAction(code="import os"))
    env.close()

    assert obs.metadata["reward_parts"]["brief"] == 0.5
    assert unsafe.reward <= -1.0


def test_the_pattern_of_an_agent_that_explores():
    from envweave import CodeAction, create_mcp_environment

    env = create_mcp_environment()
    obs = env.reset()
    script = [
        "data = [3, 1, 2]\nfile_write('data.json', json.dumps(data))",
        "loaded = json.loads(file_read('data.json'))\nsorted(loaded)",
        "undefined_name",
        "sum(loaded) / len(loaded)",
    ]

    seen = []
    for code in script:
        obs = env.step(CodeAction(code=code))
        seen.append(obs.execution_result.return_value if obs.execution_result.success else "error")
    variables = env.state.variables
    env.close()

    assert seen == [9, [1, 2, 3], "error", 2.0]
    assert variables["loaded"].type == "list"


def test_the_pattern_of_an_rl_loop():
    from envweave import CodeAction, create_codeact_env, create_math_env_transform

    class Model:
        """Learns which of two programs pays."""

        def __init__(self) -> None:
            self.value = {"40 + 2": 0.0, "40 * 2": 0.0}
            self.rng = random.Random(0)

        def generate(self, obs) -> CodeAction:
            if self.rng.random() < 0.2:
                return CodeAction(code=self.rng.choice(list(self.value)))
            return CodeAction(code=max(self.value, key=self.value.get))

        def update(self, action: CodeAction, reward: float) -> None:
            self.value[action.code] += 0.5 * (reward - self.value[action.code])

    env = create_codeact_env()
    env.transform = create_math_env_transform(expected_answer=42)
    model = Model()
    for episode in range(30):
        obs = env.reset(seed=episode)
        action = model.generate(obs)
        obs = env.step(action)
        model.update(action, obs.reward)
    env.close()

    assert max(model.value, key=model.value.get) == "40 + 2"
    assert model.value["40 + 2"] > 0.5 > model.value["40 * 2"]


def test_the_pattern_of_both_explore_first_then_train():
    from envweave import CodeAction, create_mcp_environment, create_safe_env_transform

    env = create_mcp_environment()
    env.reset()
    explored = env.step(CodeAction(code="file_write('notes.txt', 'seen'); 1 + 1"))

    env.transform = create_safe_env_transform()
    safe = env.step(CodeAction(code="file_read('notes.txt')"))
    unsafe = env.step(CodeAction(code="__import__('os').getcwd()"))
    env.close()

    assert explored.reward is None
    assert safe.execution_result.return_value == "seen"
    assert unsafe.reward < 0 <= safe.reward


def test_the_reward_is_the_same_with_every_client():
    def make():
        return ew.create_codeact_env(transform=ew.create_math_env_transform(expected_answer=42))

    with make() as env:
        env.reset()
        bare = env.step(ew.CodeAction(code="6 * 7"))
    with ew.make(make) as env:
        env.reset()
        made = env.step({"code": "6 * 7"})

    assert made.reward == bare.reward > 0
    assert made.reward_parts == bare.metadata["reward_parts"]
