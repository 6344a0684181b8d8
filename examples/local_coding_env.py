"""Run code in a Docker container: `python3 examples/local_coding_env.py`.

Build the image first: `docker build -t coding-env:latest -f docker/coding_env_server/Dockerfile .`
"""

import sys

import envweave as ew
from envweave.envs.coding_env import CodeAction, CodingEnv

PROGRAMS = [
    "print('Hello, World!')",
    "numbers = [1, 2, 3]; print(sum(numbers))",
    "numbers.append(4); sum(numbers)",  # variables last for the episode
    "print(numbers[7])",
    "open('/etc/passwd').read()",
]

image = sys.argv[1] if len(sys.argv) > 1 else "coding-env:latest"
print(f"Starting {image} ...")
try:
    client = CodingEnv.from_docker_image(image)
except ew.EnvWeaveError as error:
    sys.exit(f"Error: {error}")

client.reset()
for program in PROGRAMS:
    observation = client.step(CodeAction(code=program)).observation
    print(f">>> {program}\n{observation.stdout}{observation.result or ''}".rstrip())
    if observation.exit_code:
        print(f"exit code {observation.exit_code}: {observation.stderr.splitlines()[-1]}")
print("state:", client.state().step_count, "steps")

client.close()
print("The container is stopped and removed.")
