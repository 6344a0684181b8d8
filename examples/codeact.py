"""An environment whose actions are Python code: state, errors, and rewards by transforms."""

from envweave import CodeAction, create_codeact_env, create_math_env_transform

env = create_codeact_env()
env.reset()

# The last expression is the return value; variables last for the episode.
env.step(CodeAction(code="data = [1, 2, 3, 4, 5]"))
observation = env.step(CodeAction(code="mean = sum(data) / len(data); print('mean', mean); mean"))
print(observation.execution_result.stdout, observation.execution_result.return_value)

# An exception is an observation, and the episode goes on.
observation = env.step(CodeAction(code="data[9]"))
print(observation.execution_result.success, observation.stderr.splitlines()[-1])

# A transform computes the reward, and may be set at any time.
env.transform = create_math_env_transform(expected_answer=42)
for code in ("21 * 2", "21 * 3", "import os; 42"):
    observation = env.step(CodeAction(code=code))
    print(f"{code!r}: reward {observation.reward}, {observation.metadata['reward_parts']}")

env.close()
