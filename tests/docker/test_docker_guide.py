"""The programs in the guide and on the environments' pages work as described."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/guides/docker.md", *ROOT.glob("src/envweave/envs/*/README.md")]
PROGRAMS = {
    title: code
    for page in PAGES
    for title, code in re.findall(
        r'^```python title="([^"]+)"\n(.*?)^```', page.read_text(), re.MULTILINE | re.DOTALL
    )
}
PRINTED = {
    "in_a_container.py": ["hi"],
    "client.py": ["1.3"],
    "vectors.py": ["4", "2"],
    "options.py": ["21"],
    "warm.py": ["0.2", "0.2", "0.2"],
    "my_env/my_env.py": [],
    "echo_in_docker.py": ["Echo", "environment", "ready!", "1.3"],
    "coding_in_docker.py": ["hello"],
}


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_guide_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS[name]],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.split()) == (0, PRINTED[name]), done.stderr
