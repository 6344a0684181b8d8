"""The scripts in `examples/` run as they are, and print what they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
IN_CONTAINERS = {"local_coding_env.py", "local_echo_env.py"}  # run by tests/docker
PRINTED = {
    "codeact.py": "'21 * 2': reward 1.05",
    "http_server.py": "HTTPEnvClient: 3 True 1",
    "mcp_tools.py": "total: 2.25\ncalled: price_of",
    "multi_agent.py": "{'x': ",
    "own_environment.py": "right\nreward 1.0 with 0 tries left",
    "quickstart.py": "111 episodes, mean return 0.93",
    "rollout.py": "sum 1 1.0",
    "tree_search.py": "fork          43%    97%   100%   100%",
    "vector_ppo.py": "trained policy, greedy: mean return 0.93, success 100%",
}


@pytest.mark.slow  # starts Python anew
@pytest.mark.parametrize("name", PRINTED)
def test_a_script_runs_and_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert PRINTED[name] in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_script_is_run_and_has_its_line_in_the_readme() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    readme = (EXAMPLES / "README.md").read_text()

    assert names == PRINTED.keys() | IN_CONTAINERS
    assert [name for name in names if f"[{name}]({name})" not in readme] == []
