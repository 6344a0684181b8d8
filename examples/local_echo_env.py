"""Talk to the echo environment in a Docker container: `python3 examples/local_echo_env.py`.

Build the image first: `docker build -t echo-env:latest -f docker/echo_env_server/Dockerfile .`
"""

import sys

import envweave as ew
from envweave.envs.echo_env import EchoAction, EchoEnv

image = sys.argv[1] if len(sys.argv) > 1 else "echo-env:latest"
print(f"Starting {image} ...")
try:
    client = EchoEnv.from_docker_image(image)
except ew.EnvWeaveError as error:
    sys.exit(f"Error: {error}")

result = client.reset()
print("reset:", result.observation.echoed_message)
for message in ("Hello, World!", "Testing echo environment", "One more message"):
    result = client.step(EchoAction(message=message))
    print(f"step: {result.observation.echoed_message!r}, reward {result.reward}")
print("state:", client.state().step_count, "steps")

client.close()
print("The container is stopped and removed.")
