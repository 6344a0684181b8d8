"""What fails at the start: one clear error, and no process left."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environments.crashing import Crashing

import envweave as ew
from envweave.errors import DefinitionError, OptionError


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("workers", [None, 3])
def test_an_environment_that_cannot_be_made_is_named_once_by_its_index(
    tmp_path: Path, workers: int | None
) -> None:
    with pytest.raises(DefinitionError) as caught:
        ew.make_vector(
            Crashing,
            num_envs=6,
            backend="process",
            workers=workers,
            at=str(tmp_path),
            fail_at=0,
            how="raise",
        )

    message = str(caught.value)
    number, _, _ = message.removeprefix("Environment ").partition(" of 6: ")
    assert message.startswith(
        f"Environment {number} of 6: Making 'Crashing' failed: OSError: out of"
    )
    # It was the first of a shard; of which one depends on timing.
    assert int(number) in ({0, 3} if workers is None else {0, 2, 4})
    assert message.count("out of machines") == 1


@pytest.mark.slow  # starts worker processes
def test_an_environment_of_a_pool_that_cannot_be_made_is_named_by_its_index(tmp_path: Path) -> None:
    for fail_at in (0, 1, 2, 3):
        at = tmp_path / str(fail_at)
        at.mkdir()

        with pytest.raises(
            DefinitionError, match=r"^Environment \d of 4: Making 'Crashing' failed"
        ):
            ew.pool(Crashing, size=4, backend="process", workers=2, at=str(at), fail_at=fail_at)
        gc.collect()  # environments that were made already are closed, without a warning


def test_a_single_environment_that_cannot_be_made_has_no_index_in_the_message(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        DefinitionError, match=r"^Making 'Crashing' failed: OSError: out of machines"
    ):
        ew.make(Crashing, backend="process", at=str(tmp_path), fail_at=0)


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(
    ("how", "words"), [("segfault", "was killed by SIGSEGV"), ("leave", "ended with exit code 4")]
)
def test_a_worker_that_dies_while_making_its_environments_is_a_definition_error(
    tmp_path: Path, how: str, words: str
) -> None:
    options: dict[str, Any] = {"at": str(tmp_path), "fail_at": 1, "how": how}

    with pytest.raises(DefinitionError, match=rf"could not make its environments: .*{words}"):
        ew.make_vector(Crashing, num_envs=4, backend="process", workers=2, **options)


@pytest.mark.slow  # starts worker processes
def test_a_worker_killed_while_it_starts_is_a_definition_error(
    trap: Callable[[], None], tmp_path: Path
) -> None:
    (tmp_path / "hold-make").touch()
    trap()

    with pytest.raises(DefinitionError, match="was killed by SIGKILL"):
        ew.make_vector(Crashing, num_envs=4, backend="process", workers=2, at=str(tmp_path))


def test_a_module_that_workers_cannot_import_is_a_definition_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    module.Nowhere = type("Nowhere", (Crashing,), {"__module__": "only_here"})  # type: ignore[attr-defined]

    with pytest.raises(DefinitionError, match=r"cannot load .*No module named 'only_here'"):
        ew.make_vector(module.Nowhere, num_envs=2, backend="process")  # type: ignore[attr-defined]


def test_a_closure_that_cannot_be_pickled_is_a_definition_error() -> None:
    lock = threading.Lock()

    with pytest.raises(DefinitionError, match=r"cannot be sent .*cannot pickle '_thread.lock'"):
        ew.make_vector(lambda: Crashing(str(lock)), num_envs=2, backend="process")


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(OptionError, match="'nope' is neither an option of make"):
        ew.make_vector(Crashing, num_envs=2, backend="process", nope=1)


def test_mode_is_refused_with_worker_processes() -> None:
    with pytest.raises(OptionError, match="mode='threads' is a way to run in this process"):
        ew.make_vector(Crashing, num_envs=2, backend="process", mode="threads")
