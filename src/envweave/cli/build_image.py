"""An image, built by the engine of this machine."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envweave.cli.build_context import (
    LAST_LINES,
    BuildError,
    Inside,
    arguments_of,
    dockerfile,
    write_context,
)
from envweave.cli.build_plan import BASE, Plan
from envweave.errors import EnvWeaveError, OptionError, StartupError
from envweave.providers.docker_engine import Engine, EngineError, RefusedError
from envweave.providers.docker_image import Image
from envweave.providers.reaper import Owner, reap

_STEP = re.compile(r"Step \d+/\d+ : ?(?P<what>.*)")
_NOISE = (" ---> ", "Removing intermediate container ")
_COMMAND = re.compile(r"^The command .* returned a non-zero code: (\d+)$")
_STAGE = "envweave.stage"
_ASK = """
import importlib.metadata, json, platform, sys
head = importlib.metadata.distribution("envweave").read_text("METADATA").partition("\\n\\n")[0]
python = ".".join(map(str, sys.version_info[:2]))
print(json.dumps({"python": python, "machine": platform.machine(), "envweave": head + "\\n"}))
"""


@dataclass(frozen=True, slots=True)
class Built:
    """An image that is there.

    Attributes:
        image: What it is called.
        id: What the engine calls it.
        size: How many bytes it has, with those of its base.
        env: What its server serves.
    """

    image: str
    id: str
    size: int
    env: str


def steps_of(plan: Plan) -> int:
    """Return how often `build_image` tells of what it does."""
    instructions = re.findall(r"^[A-Z]+ ", dockerfile(), re.MULTILINE)
    folders = sum(not hasattr(source, "version") for source in plan.sources)
    fetches = bool(plan.sources or plan.more) and not plan.online
    return len(instructions) + folders + fetches


def build_image(plan: Plan, tell: Callable[[str], None]) -> Built:
    """Build an image. Nothing else is left behind, on the engine or on the disk.

    Args:
        plan: What is to be built.
        tell: Called with what is done next.

    Raises:
        StartupError: The engine does not answer, or there is no such base.
        OptionError: The base is none.
        BuildError: A step failed.
    """
    engine = Engine()
    try:
        base = _found_base(engine, plan.base)
        with tempfile.TemporaryDirectory(prefix="envweave-build-") as name:
            folder = Path(name)
            write_context(plan, folder, lambda: _look_inside(engine, base), tell)
            _build(engine, plan, base, folder, tell)
        about = engine.image(plan.image)
    finally:
        engine.close()
    return Built(plan.image, about["Id"], about["Size"], plan.env_id)


def _found_base(engine: Engine, base: str) -> str:
    """Return the id of an image: its name may be another's before the build is over."""
    try:
        about = engine.image(base)
    except (EngineError, RefusedError):
        raise
    except StartupError as error:
        raise StartupError(f"{error} Or name another image to build on with --base.") from None
    if not Image(base, about).is_ours:
        raise OptionError(
            f"--base {base!r} has no envweave in it. Name an image that is built on {BASE}, or "
            "leave it out."
        )
    identity: str = about["Id"]
    return identity


def _build(
    engine: Engine, plan: Plan, base: str, folder: Path, tell: Callable[[str], None]
) -> None:
    stage = f"{plan.image}-{secrets.token_hex(8)}"
    arguments = {**arguments_of(plan), "BASE": base, "BUILD": stage}
    network = "none" if plan.is_sealed else None
    log: deque[str] = deque(maxlen=LAST_LINES)
    try:
        with _packed(folder) as context:
            for line in engine.build(context, plan.image, arguments, network):
                step = _STEP.match(line)
                if step is not None:
                    tell(step["what"])
                    log.clear()  # what went well before says nothing
                elif not line.startswith(_NOISE):
                    log.append(line)
    except RefusedError as error:
        # The whole of a command says little, and fills the screen.
        code = _COMMAND.search(str(error))
        why = f"a command in it exited with {code[1]}" if code else str(error).rstrip(".")
        raise BuildError.with_log(f"Building {plan.image!r} failed: {why}.", log) from None
    finally:
        with contextlib.suppress(EnvWeaveError):  # of an engine that has gone meanwhile
            engine.remove_images(f"{_STAGE}={stage}")


@contextlib.contextmanager
def _packed(folder: Path) -> Iterator[tempfile._TemporaryFileWrapper[bytes]]:
    with tempfile.NamedTemporaryFile(prefix="envweave-build-", suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(folder, ".", filter=_as_roots)
        file.seek(0)
        yield file


def _as_roots(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a file as everybody may read it: a temporary folder is its owner's alone."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def _look_inside(engine: Engine, base: str) -> Inside:
    """Ask the Python in an image what it is."""
    reap(engine)
    name = f"envweave-{secrets.token_hex(6)}"
    config = {
        "Image": base,
        "Entrypoint": ["/opt/envweave/bin/python"],
        "Cmd": ["-I", "-c", _ASK],
        "Labels": Owner.here().labels(),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {"NetworkMode": "none"},
    }
    try:
        engine.create(name, config)
        engine.start(name)
        code = engine.wait(name)
        said = engine.last_lines(name, LAST_LINES)
    finally:
        engine.remove(name)
    if code:
        raise BuildError.with_log(f"The Python in {base!r} does not run.", said)
    return Inside(**json.loads(said[-1]))
