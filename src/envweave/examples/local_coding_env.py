"""Run code in a container: `python -m envweave.examples.local_coding_env`.

Needs a Docker engine, the extra `docker`, and the image, which `envweave build coding-v0` builds.
The code runs in the sandbox of a container that is started for the client, and is gone when the
client is closed.
"""

from __future__ import annotations

import argparse
import sys
import textwrap

import envweave as ew
from envweave.envs.coding_env import CodeAction, CodingEnv

PROGRAMS = (
    "print('Hello, World!')",
    "numbers = [1, 2, 3]\nprint(sum(numbers))",
    "numbers.append(4)  # still there\nsum(numbers)",
    "print(numbers[7])",
    "open('/etc/passwd').read()",
)


def main(argv: list[str] | None = None) -> int:
    """Play one short episode as the options say, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envweave.examples.local_coding_env",
        description="Run some code in a container of this machine.",
    )
    parser.add_argument("--image", default="coding-env:latest", metavar="NAME", help="which image")
    image = parser.parse_args(argv).image
    try:
        play(image)
    except ew.EnvWeaveError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 0


def play(image: str) -> None:
    """Start a container, run a few programs in one session, and print what they come to."""
    say = sys.stdout.write
    say(f"Starting {image} ...\n")
    with CodingEnv.from_docker_image(image) as env:
        env.reset()
        for program in PROGRAMS:
            seen = env.step(CodeAction(program)).observation
            say(f"\n{textwrap.indent(program, '>>> ')}\n{seen.stdout}")
            if seen.result is not None:
                say(f"{seen.result}\n")
            if seen.exit_code:
                say(f"exit code {seen.exit_code}: {seen.stderr.splitlines()[-1]}\n")
        say(f"\nstate: {env.state().step_count} steps\n")
    say("The container is gone.\n")


if __name__ == "__main__":
    sys.exit(main())
