"""Sessions of a host that is root: whose id they have, and that they can reach their files."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from staging import NoInterpreterError, python_for_others, stage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives user ids away")

CODE = """
import json, sys
from envweave.sandbox import Sandbox
with Sandbox(isolation=sys.argv[1]) as box, box.session() as one, box.session() as other:
    one.write_file("a/b", b"x")
    seen = one.run("import os, tempfile; [os.getuid(), tempfile.mkstemp()[1] != '']")
    told = any("keep this user's id" in sentence for sentence in box.tier.missing)
    users = [seen.return_value[0], other.run("import os; os.getuid()").return_value]
    print(json.dumps({"users": users, "files": one.list_files("a"), "told": told}))
"""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """An interpreter that every user may run, with envweave."""
    try:
        interpreter = python_for_others()
    except NoInterpreterError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield stage(Path(folder) / "staged", interpreter)


def run(python: Path, isolation: str, temporary: str) -> dict[str, object]:
    done = subprocess.run(
        [str(python), "-B", "-c", CODE, isolation],
        env={**os.environ, "TMPDIR": temporary},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("isolation", ["namespace", "landlock"])
def test_each_session_has_a_user_id_of_its_own(python: Path, isolation: str) -> None:
    seen = run(python, isolation, tempfile.gettempdir())

    users = seen.pop("users")
    assert isinstance(users, list)
    assert len(set(users) | {0}) == 3
    assert seen == {"files": ["a/b"], "told": False}


@pytest.mark.slow  # starts Python anew
def test_where_other_users_cannot_pass_sessions_keep_the_hosts_id_and_their_files(
    python: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)

    seen = run(python, "landlock", str(tmp_path))

    assert seen == {"users": [0, 0], "files": ["a/b"], "told": True}
