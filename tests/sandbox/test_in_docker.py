"""The sandbox inside a container that `docker run` starts, with no option that weakens it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attacks.corpus import load
from containers import need_image
from staging import stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMOKE = """
import json
import os

from envweave.sandbox import Limits, Sandbox

seen = {"user": os.geteuid()}
with Sandbox(limits=Limits(timeout_s=10), preload=["numpy"]) as box:
    seen["tier"] = box.tier.name
    seen["missing"] = list(box.tier.missing)
    with box.session(seed=7) as session:
        session.put("table", [1, 2, 3])
        session.write_file("a/b.txt", b"hello")
        first = session.run("import numpy as np\\nint(np.array(table).sum())")
        seen["sum"] = first.return_value
        seen["file"] = session.run("open('a/b.txt').read()").return_value
        seen["refused"] = session.run("open('/etc/shadow').read()").exception_type
        seen["interrupted"] = session.run("while True: pass", timeout_s=0.2).limits_hit
        seen["kept"] = session.run("table").return_value
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Containers:
    """Runs Python with envweave in new containers."""

    image: str
    folder: Path

    def run(self, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        mounted = ("--volume", f"{self.folder}:{self.folder}:ro")
        # The only option that is not a default: a failing wall must not take down the machine.
        bounded = ("--pids-limit", "1000")
        command = ["docker", "run", "--rm", "--user", user, *bounded, *mounted, self.image]
        python = str(self.folder / "bin/python")
        return subprocess.run(
            [*command, python, "-B", *arguments], capture_output=True, text=True, check=False
        )

    def attack(self, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        return self.run(str(self.folder / "scripts/attacks"), *arguments, user=user)


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    """An image with Python, and a copy of envweave for it."""
    image = need_image()
    if sys.version_info[:2] != (3, 11):
        pytest.skip(f"The image has Python 3.11, and the modules here are for {sys.version[:4]}.")
    folder = Path(tempfile.mkdtemp(prefix="envweave-for-docker-"))
    try:
        stage(folder, Path("/usr/bin/python3.11"))
        yield Containers(image, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_session_works_with_the_remaining_isolation(containers: Containers) -> None:
    done = containers.run("-c", SMOKE)

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("missing")
    assert seen == {
        "user": 0,
        "tier": "landlock",
        "sum": 6,
        "file": "hello",
        "refused": "PermissionError",
        "interrupted": ["time"],
        "kept": [1, 2, 3],
    }


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_every_attack_is_contained(containers: Containers, user: str) -> None:
    done = containers.attack("--json", user=user)

    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    attacks = report["attacks"]
    broken = {one["id"]: one["broken"] for one in attacks if not (one["held"] or one["known"])}
    assert broken == {}
    assert (report["tier"], report["played"]) == ("landlock", len(load()))


def test_requesting_namespaces_is_refused_with_advice(containers: Containers) -> None:
    done = containers.attack("--isolation", "namespace")

    assert done.returncode == 2
    assert "unshare" in done.stderr
    assert "--security-opt" in done.stderr
