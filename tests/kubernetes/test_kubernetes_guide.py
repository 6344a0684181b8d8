"""The programs in the guide work as described, in a cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/guides/kubernetes.md").read_text()
PROGRAMS = dict(
    re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
)
PRINTED = {"in_a_pod.py": "Hello, World!", "options.py": "1.3", "vectors.py": "True"}


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_guide_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[name]], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, PRINTED[name]), done.stderr
