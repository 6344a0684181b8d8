"""Environments of reasoning-gym, TextArena, OpenSpiel and MiniGrid, by their released packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installations import ROOT, venv_python, with_envweave

import envweave as ew
from envweave.errors import MissingExtraError

IMPORTING = "importing these packages takes seconds"
PAGE = ROOT / "docs/guides/environment-families.md"
PROGRAM = re.compile(
    r'^```python title="([^"]+)"\n(.*?)^```\n+```text\n(.*?)^```', re.MULTILINE | re.DOTALL
)


@pytest.mark.slow(IMPORTING)
@pytest.mark.timeout(500)
def test_every_family_keeps_its_promises(tmp_path: Path) -> None:
    checks = ROOT / "tests/interop/families_checks.py"
    command = [venv_python("families"), "-m", "pytest", "-q", "-c", os.devnull, "--noconftest"]
    command += [f"--rootdir={tmp_path}", "-p", "no:cacheprovider", "--timeout=120"]
    # What other packages warn of is not ours to fix.
    command += ["-W", "error", "-W", "ignore::DeprecationWarning", "-W", "ignore::SyntaxWarning"]

    run = subprocess.run(
        [*command, checks],
        env=with_envweave(HOME=str(tmp_path), SDL_VIDEODRIVER="dummy"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]


@pytest.mark.slow(IMPORTING)
def test_the_programs_of_the_guide_print_what_it_says(tmp_path: Path) -> None:
    programs = PROGRAM.findall(PAGE.read_text(encoding="utf-8"))

    for name, code, printed in programs:
        (tmp_path / name).write_text(code, encoding="utf-8")
        run = subprocess.run(
            [venv_python("families"), "-W", "ignore", tmp_path / name],
            env=with_envweave(HOME=str(tmp_path)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (name, run.stdout) == (name, printed), run.stderr
    assert len(programs) >= 4


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("rg://chain_sum", "reasoning_gym", "reasoning-gym"),
        ("textarena://TicTacToe-v0", "textarena", "textarena"),
        ("openspiel://kuhn_poker", "pyspiel", "openspiel"),
    ],
)
def test_without_its_package_a_scheme_names_the_extra(
    env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingExtraError, match=re.escape(f"pip install 'envweave[{extra}]'")):
        ew.make(env_id)


def test_without_minigrid_its_ids_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)

    with pytest.raises(MissingExtraError, match="pip install minigrid"):
        ew.make("gym://MiniGrid-Empty-5x5-v0")
