"""Building an image: its context with wheels, then the build on this machine's engine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import platform
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from envweave.cli.commands.build.plan import BASE, BuildPlan, LooseModule, Project, PublishedPackage
from envweave.errors import EnvWeaveError, MissingExtraError, OptionError, StartupError
from envweave.providers.cleanup import Owner, remove_leftovers
from envweave.providers.docker.engine import Engine, EngineError, EngineRefusedError
from envweave.providers.docker.options import Image

LAST_LINES = 20
"""How many lines of a log are shown when a build fails."""

_QUIET = ("--quiet", "--no-input", "--disable-pip-version-check")


class BuildError(StartupError):
    """An image could not be built. After the first line, the message has the end of the log."""

    @classmethod
    def with_log(cls, message: str, log: Iterable[str]) -> BuildError:
        """Compose the message."""
        lines = [line.rstrip() for line in log if line.strip()]
        return cls("\n".join([message, *lines[-LAST_LINES:]]))


@dataclass(frozen=True, slots=True)
class ImageContents:
    """The Python in an image, which wheels are built for.

    Attributes:
        python: Its version, such as `"3.11"`.
        machine: Its architecture, such as `"x86_64"`.
        envweave: Headers of the metadata of envweave in the image.
    """

    python: str
    machine: str
    envweave: str

    def is_like_here(self) -> bool:
        """Whether wheels that pip builds for this process run there."""
        here = (sys.platform, platform.machine(), sys.implementation.name)
        version = ".".join(map(str, sys.version_info[:2]))
        return here == ("linux", self.machine, "cpython") and version == self.python


def dockerfile() -> str:
    """Return the Dockerfile of every image, which is configured by build arguments."""
    file = resources.files("envweave.cli.commands.build") / "dockerfiles" / "env.Dockerfile"
    return file.read_text(encoding="utf-8")


def arguments_of(plan: BuildPlan) -> dict[str, str]:
    """Return the build arguments."""
    options = "" if plan.online else "--no-index"
    return {"BASE": plan.base, "ENV_ID": plan.env_id, "PIP_OPTIONS": options}


def write_context(
    plan: BuildPlan,
    folder: Path,
    inside: Callable[[], ImageContents],
    report: Callable[[str], None],
) -> None:
    """Write the build context of an image into an empty folder.

    Args:
        plan: What to build.
        folder: Where to write it.
        inside: Inspects the base image; called if wheels must be fetched.
        report: Called with each step before it begins.

    Raises:
        BuildError: pip cannot build or fetch something.
        MissingExtraError: pip is needed and not installed.
    """
    wheels = folder / "wheels"
    wheels.mkdir()
    (folder / "Dockerfile").write_text(dockerfile(), encoding="utf-8")
    # Requirements for pip here and in the image, where every wheel is found by its name.
    here: list[str] = []
    there: list[str] = []
    for source in plan.sources:
        if isinstance(source, PublishedPackage):
            url = source.url
            here.append(
                f"{source.name}=={source.version}" if url is None else f"{source.name} @ {url}"
            )
            there.append(f"{source.name}=={source.version}")
            continue
        report(f"Building {source}")
        wheel = _own_wheel(source, wheels)
        here.append(str(wheel))
        there.append("{}=={}".format(*wheel.name.split("-")[:2]))
    (folder / "requirements.txt").write_text(
        "".join(f"{one}\n" for one in [*there, *plan.more]), encoding="utf-8"
    )
    requirements = [*here, *plan.more]
    if requirements and not plan.online:
        report("Fetching dependencies")
        _fetch(requirements, wheels, folder / "known", inside())
        shutil.rmtree(folder / "known")


def _own_wheel(source: Project | LooseModule, wheels: Path) -> Path:
    before = set(wheels.iterdir())
    if isinstance(source, LooseModule):
        _write_wheel(source, wheels)
    else:
        _pip(
            f"pip cannot build the project in {str(source.folder)!r}",
            *("wheel", "--no-deps", "--wheel-dir", wheels, source.folder),
        )
    (made,) = set(wheels.iterdir()) - before
    return made


def _write_wheel(source: LooseModule, wheels: Path) -> None:
    """Write a wheel of loose modules."""
    name = f"modules_of_{re.sub(r'[^a-z0-9]+', '_', source.names[0].lower()).strip('_')}"
    about = f"{name}-0.dist-info"
    texts = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files: dict[str, Path] = {}
    for module in source.names:
        package, single = source.folder / module, source.folder / f"{module}.py"
        inner = package.rglob("*") if package.is_dir() else [single]
        files |= {
            one.relative_to(source.folder).as_posix(): one
            for one in inner
            if one.is_file() and "__pycache__" not in one.parts
        }
    with zipfile.ZipFile(wheels / f"{name}-0-py3-none-any.whl", "w") as wheel:
        for inner_name, file in files.items():
            wheel.write(file, inner_name)
        for inner_name, text in texts.items():
            wheel.writestr(inner_name, text)
        record = [*files, *texts, f"{about}/RECORD"]
        wheel.writestr(f"{about}/RECORD", "".join(f"{one},,\n" for one in record))


def _fetch(requirements: list[str], wheels: Path, known: Path, inside: ImageContents) -> None:
    """Fetch the wheels of all dependencies except envweave, which is in the image."""
    known.mkdir()
    ours = _write_stub_wheel(known, inside.envweave)
    constraints = known / "constraints.txt"
    constraints.write_text(f"envweave=={ours.name.split('-')[1]}\n", encoding="utf-8")
    if inside.is_like_here():
        command: list[str | Path] = ["wheel", "--wheel-dir", wheels]
    else:
        tags = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        platforms = [part for tag in tags for part in ("--platform", f"{tag}_{inside.machine}")]
        command = ["download", "--only-binary", ":all:", "--dest", wheels, *platforms]
        command += ["--python-version", inside.python, "--implementation", "cp"]
    command += ["--find-links", wheels, "--find-links", known, "--constraint", constraints]
    _pip("pip cannot fetch the dependencies of the environment", *command, *requirements)
    (wheels / ours.name).unlink(missing_ok=True)


def _write_stub_wheel(folder: Path, head: str) -> Path:
    """Write a wheel with the metadata of envweave and no code."""
    about = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    version = about["Version"]
    wheel = folder / f"envweave-{version}-py3-none-any.whl"
    inner = f"envweave-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{inner}/METADATA", head)
        file.writestr(
            f"{inner}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{inner}/RECORD", "")
    return wheel


def _pip_command() -> list[str]:
    """Return the command for pip: the installed one, or the one bundled with ensurepip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # A virtual environment made by uv has no pip. Debian keeps the wheel in a separate folder.
    folders = [Path(sysconfig.get_path("stdlib"), "ensurepip", "_bundled")]
    folders.append(Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or folders[0]))
    for wheel in (wheel for folder in folders for wheel in folder.glob("pip-*.whl")):
        return [sys.executable, f"{wheel}/pip"]
    raise MissingExtraError(
        f"Building an image needs pip, which {sys.executable} does not have. Install it there: "
        "`uv pip install pip`, or your system's package python3-venv."
    )


def _pip(failure: str, *command: str | Path) -> None:
    verb, *rest = command
    done = subprocess.run(  # noqa: S603 - this Python, with the user's requirements
        [*_pip_command(), verb, *_QUIET, *rest],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise BuildError.with_log(f"{failure}.", (done.stdout + "\n" + done.stderr).splitlines())


_STEP = re.compile(r"Step \d+/\d+ : ?(?P<what>.*)")
_NOISE = (" ---> ", "Removing intermediate container ")
_COMMAND = re.compile(r"^The command .* returned a non-zero code: (\d+)$")
_STAGE = "envweave.stage"
_INSPECT_CODE = """
import importlib.metadata, json, platform, sys
head = importlib.metadata.distribution("envweave").read_text("METADATA").partition("\\n\\n")[0]
python = ".".join(map(str, sys.version_info[:2]))
print(json.dumps({"python": python, "machine": platform.machine(), "envweave": head + "\\n"}))
"""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image that was built.

    Attributes:
        image: Its name.
        id: Its ID at the engine.
        size: Its size in bytes, including its base.
        env: The environment that its server serves.
    """

    image: str
    id: str
    size: int
    env: str


def steps_of(plan: BuildPlan) -> int:
    """Return how many steps `build_image` reports."""
    instructions = re.findall(r"^[A-Z]+ ", dockerfile(), re.MULTILINE)
    folders = sum(not hasattr(source, "version") for source in plan.sources)
    fetches = bool(plan.sources or plan.more) and not plan.online
    return len(instructions) + folders + fetches


def build_image(plan: BuildPlan, report: Callable[[str], None]) -> BuiltImage:
    """Build an image, and leave nothing else behind on the engine or the disk.

    Args:
        plan: What to build.
        report: Called with each step before it begins.

    Raises:
        StartupError: The engine does not answer, or there is no such base.
        OptionError: The base image has no envweave.
        BuildError: A step failed.
    """
    engine = Engine()
    try:
        base = _find_base(engine, plan.base)
        with tempfile.TemporaryDirectory(prefix="envweave-build-") as name:
            folder = Path(name)
            write_context(plan, folder, lambda: _inspect_python(engine, base), report)
            _build(engine, plan, base, folder, report)
        about = engine.image(plan.image)
    finally:
        engine.close()
    return BuiltImage(plan.image, about["Id"], about["Size"], plan.env_id)


def _find_base(engine: Engine, base: str) -> str:
    """Return the ID of an image: its name may move to another image during the build."""
    try:
        about = engine.image(base)
    except (EngineError, EngineRefusedError):
        raise
    except StartupError as error:
        raise StartupError(f"{error} Or choose another base image with --base.") from None
    if not Image(base, about).is_ours:
        raise OptionError(
            f"--base {base!r} does not contain envweave. Use an image that is built on {BASE}, or "
            "omit the option."
        )
    identity: str = about["Id"]
    return identity


def _build(
    engine: Engine, plan: BuildPlan, base: str, folder: Path, report: Callable[[str], None]
) -> None:
    stage = f"{plan.image}-{secrets.token_hex(8)}"
    arguments = {**arguments_of(plan), "BASE": base, "BUILD": stage}
    network = "none" if plan.is_sealed else None
    log: deque[str] = deque(maxlen=LAST_LINES)
    try:
        with _pack(folder) as context:
            for line in engine.build(context, plan.image, arguments, network):
                step = _STEP.match(line)
                if step is not None:
                    report(step["what"])
                    log.clear()  # the output of a step that succeeded is not of interest
                elif not line.startswith(_NOISE):
                    log.append(line)
    except EngineRefusedError as error:
        # The full command says little and fills the screen.
        code = _COMMAND.search(str(error))
        why = f"a command in it exited with {code[1]}" if code else str(error).rstrip(".")
        raise BuildError.with_log(f"Building {plan.image!r} failed: {why}.", log) from None
    finally:
        with contextlib.suppress(EnvWeaveError):  # the engine may have stopped meanwhile
            engine.remove_images(f"{_STAGE}={stage}")


@contextlib.contextmanager
def _pack(folder: Path) -> Iterator[tempfile._TemporaryFileWrapper[bytes]]:
    with tempfile.NamedTemporaryFile(prefix="envweave-build-", suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(folder, ".", filter=_normalize_owner)
        file.seek(0)
        yield file


def _normalize_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make a file readable by every user: in a temporary folder only its owner can read it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def _inspect_python(engine: Engine, base: str) -> ImageContents:
    """Inspect the Python in an image."""
    remove_leftovers(engine)
    name = f"envweave-{secrets.token_hex(6)}"
    config = {
        "Image": base,
        "Entrypoint": ["/opt/envweave/bin/python"],
        "Cmd": ["-I", "-c", _INSPECT_CODE],
        "Labels": Owner.here().labels(),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {"NetworkMode": "none"},
    }
    try:
        engine.create(name, config)
        engine.start(name)
        code = engine.wait(name)
        output = engine.last_lines(name, LAST_LINES)
    finally:
        engine.remove(name)
    if code:
        raise BuildError.with_log(f"The Python in {base!r} does not run.", output)
    return ImageContents(**json.loads(output[-1]))
