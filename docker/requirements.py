"""Print the packages that an image with envweave's server needs, as pip reads them.

With --build also those that envweave's own wheel is built with.
"""

import sys
import tomllib
from pathlib import Path

EXTRA = "server"


def requirements(*, build: bool) -> list[str]:
    """Return them, from `pyproject.toml`; pip is for images that are built on ours."""
    about = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    project = about["project"]
    found = [*project["dependencies"], *project["optional-dependencies"][EXTRA], "pip"]
    return found + (about["build-system"]["requires"] if build else [])


if __name__ == "__main__":
    sys.stdout.writelines(f"{one}\n" for one in requirements(build="--build" in sys.argv[1:]))
