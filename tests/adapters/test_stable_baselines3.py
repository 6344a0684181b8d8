"""stable-baselines3 trains on our environments: the programs of its guide, run as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/stable-baselines3.md").read_text()
PROGRAMS = dict(
    re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
)
PEERS = ROOT / "scripts/peers"
STRICT = "import warnings\nwarnings.simplefilter('error')\n"


@pytest.fixture(scope="module", autouse=True)
def _stable_baselines3() -> None:
    """Skip where it is not set up, but not in CI."""
    if os.environ.get("CI") == "true":
        return
    where = subprocess.check_output([sys.executable, PEERS, "--where"], text=True).strip()
    known = Path(where, "peers.json")
    if not known.exists() or json.loads(known.read_text()).get("stable-baselines3", "missing"):
        pytest.skip("stable-baselines3 is not set up. Run scripts/peers once.")


def run(name: str, tmp_path: Path) -> str:
    """Run a program of the guide in the peers' environment; a warning fails it."""
    program = tmp_path / name
    # Torch is imported before warnings count: what it says of itself is not ours.
    program.write_text(f"import stable_baselines3\n{STRICT}{PROGRAMS[name]}")
    # Networks this small are slower on two threads, and much slower beside other tests.
    done = subprocess.run(
        [sys.executable, PEERS, program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ppo_reaches_the_goal_of_lineworld(tmp_path: Path) -> None:
    output = run("train.py", tmp_path)

    share = int(re.fullmatch(r"(\d+)% of 200 episodes reach the goal", output)[1])
    assert share >= 95


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("dict_policy.py", "Dict('goal': Discrete(2), 'position': Box(-1.0, 1.0, (1,), float64))"),
        ("several.py", "4 100"),
    ],
)
def test_a_program_of_the_guide_runs_without_a_warning(
    name: str, printed: str, tmp_path: Path
) -> None:
    assert run(name, tmp_path) == printed
