from __future__ import annotations

import subprocess
import sys

import pytest

import envweave as ew


def test_importing_the_examples_imports_no_extra():
    code = (
        "import sys, envweave.examples as e; e.CounterEnv; e.LineWorldEnv; e.HarvestEnv; "
        "e.TicTacToeEnv; e.GSM8KEnv; "
        "print(sorted({'matplotlib', 'rich', 'gymnasium', 'tinker'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_exactly_the_exported_names_exist():
    assert all(getattr(ew.examples, name) for name in ew.examples.__all__)
    assert dir(ew.examples) == ew.examples.__all__
    with pytest.raises(AttributeError, match="LineWrld"):
        ew.examples.LineWrld
