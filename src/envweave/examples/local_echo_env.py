"""Talk to the echo environment in a container: `python -m envweave.examples.local_echo_env`.

Needs a Docker engine, the extra `docker`, and the image, which `envweave build echo-v0` builds. The
container is started for the client, and is gone when the client is closed.
"""

from __future__ import annotations

import argparse
import sys

import envweave as ew
from envweave.envs.echo_env import EchoAction, EchoEnv

MESSAGES = ("Hello, World!", "Testing echo environment", "One more message")


def main(argv: list[str] | None = None) -> int:
    """Play one short episode as the options say, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envweave.examples.local_echo_env",
        description="Talk to the echo environment in a container of this machine.",
    )
    parser.add_argument("--image", default="echo-env:latest", metavar="NAME", help="which image")
    image = parser.parse_args(argv).image
    try:
        play(image)
    except ew.EnvWeaveError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 0


def play(image: str) -> None:
    """Start a container, say a few things, and print what comes back."""
    say = sys.stdout.write
    say(f"Starting {image} ...\n")
    with EchoEnv.from_docker_image(image) as env:
        say(f"reset  {env.reset().observation.echoed_message}\n")
        for message in MESSAGES:
            result = env.step(EchoAction(message))
            seen = result.observation
            say(f"step   {seen.echoed_message!r}, {seen.message_length} letters, ")
            say(f"reward {result.reward}\n")
        say(f"state  {env.state().step_count} steps\n")
    say("The container is gone.\n")


if __name__ == "__main__":
    sys.exit(main())
