"""What isolation this machine supports, and how to improve it.

Each tier is tried, and what it lacks is listed. The advice depends on facts about the machine: a
list of sentences with the exact setting or command.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envweave.errors import IsolationError, SandboxError
from envweave.sandbox.config import SandboxConfig
from envweave.sandbox.protocol.orders import Isolation

Container = Literal["docker", "kubernetes", "podman", "other"]

BY_DOCKER = (
    "With a Docker engine, the code of an environment runs in a container instead: "
    "`create_codeact_env(executor='docker')`."
)
"""The alternative for code of environments."""

_USERS = frozenset({"namespaces", "user namespace"})
_MOUNTS = frozenset({"namespaces", "user namespace", "root folder", "work folder"})
_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_EXHAUSTED = frozenset({errno.ENOSPC, errno.EUSERS})
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_OLDEST = {"root folder": (5, 12), "landlock": (5, 13), "descriptors": (5, 9)}
_ANY = frozenset[str]()
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts about a machine. A setting that it does not have is `None`.

    Attributes:
        system: As `sys.platform` has it.
        machine: The processor's architecture.
        kernel: The first two numbers of the kernel's version.
        is_root: Whether this process has user id 0.
        is_admin: Whether it has CAP_SYS_ADMIN.
        is_filtered: Whether it runs under a seccomp filter.
        container: What it runs in.
        userns_clone: `kernel.unprivileged_userns_clone`.
        max_user_namespaces: `user.max_user_namespaces`.
        apparmor_restricts: `kernel.apparmor_restrict_unprivileged_userns`.
        modules: The enabled security modules of the kernel; `None` if unknown.
        python: The interpreter's path.
    """

    system: str = "linux"
    machine: str = "x86_64"
    kernel: tuple[int, int] = (6, 8)
    is_root: bool = False
    is_admin: bool = False
    is_filtered: bool = False
    container: Container | None = None
    userns_clone: int | None = None
    max_user_namespaces: int | None = None
    apparmor_restricts: int | None = None
    modules: tuple[str, ...] | None = None
    python: str = "/usr/bin/python3"


def machine_facts(
    root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> MachineFacts:
    """Return the facts about this machine. What cannot be read counts as missing."""
    status = _status(root / "proc/self/status")
    modules = _content(root / "sys/kernel/security/lsm")
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return MachineFacts(
        system=sys.platform,
        machine=platform.machine(),
        kernel=(int(release[1]), int(release[2])) if release is not None else (0, 0),
        is_root=status.get("Uid", "1").split()[0] == "0",
        is_admin=bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1),
        is_filtered=status.get("Seccomp", "0") != "0",
        container=_container(root, environment),
        userns_clone=_number(root / "proc/sys/kernel/unprivileged_userns_clone"),
        max_user_namespaces=_number(root / "proc/sys/user/max_user_namespaces"),
        apparmor_restricts=_number(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        modules=None if modules is None else tuple(modules.strip().split(",")),
        python=os.path.realpath(sys.executable),
    )


def _container(root: Path, environment: Mapping[str, str]) -> Container | None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return "other" if "container" in environment else None


def _status(path: Path) -> dict[str, str]:
    lines = (_content(path) or "").splitlines()
    rows = [line.partition(":") for line in lines]
    return {name: value.strip() for name, _, value in rows}


def _number(path: Path) -> int | None:
    text = _content(path)
    return int(text) if text is not None and text.strip().isdigit() else None


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class _Rule:
    """Advice for some walls.

    Attributes:
        walls: Their names; empty for any.
        errnos: The errors of the kernel that it applies to; empty for any.
        applies: Whether it applies to a machine.
        text: The advice.
    """

    walls: frozenset[str]
    errnos: frozenset[int]
    applies: Callable[[MachineFacts], bool]
    text: Callable[[MachineFacts], str]


def advise(wall: str, number: int, facts: MachineFacts) -> list[str]:
    """Return advice for a wall that cannot be set up.

    Args:
        wall: Its name.
        number: The error's number from the kernel; 0 if it was not the kernel.
        facts: The machine.

    Returns:
        Sentences, the most likely cause first; none where only the failure is known.
    """
    if facts.system != "linux":
        return _elsewhere(facts)
    advice = [
        rule.text(facts)
        for rule in _RULES
        if (not rule.walls or wall in rule.walls)
        and (not rule.errnos or number in rule.errnos)
        and rule.applies(facts)
    ]
    oldest = _OLDEST.get(wall)
    if oldest is not None and facts.kernel < oldest:
        advice.insert(
            0,
            f"This needs Linux {_version(oldest)} or newer, and this is {_version(facts.kernel)}: "
            "upgrade the kernel.",
        )
    if not advice and number:
        advice.append(
            f"The kernel returned {errno.errorcode.get(number, number)}. See its log: "
            "`sudo dmesg | tail`, `sudo journalctl -k -n 50`."
        )
    return advice


def advise_cgroups(facts: MachineFacts) -> list[str]:
    """Return advice on how this process gets cgroups for its sessions."""
    if facts.system != "linux":
        return []
    if facts.container == "kubernetes":
        return [
            "A pod's memory limit applies to all sessions together; a limit for each needs a node "
            "whose container runtime mounts cgroups writable."
        ]
    if facts.container is not None:
        return ["Start the container with `--security-opt writable-cgroups=true` (Docker 28)."]
    if facts.is_root:
        return ["Start it with `systemd-run --scope -p Delegate=yes COMMAND`."]
    return ["Start it with `systemd-run --user --scope -p Delegate=yes COMMAND`."]


def _elsewhere(facts: MachineFacts) -> list[str]:
    machine = {"darwin": "macOS", "win32": "Windows"}.get(facts.system, facts.system)
    advice = [
        f"The sandbox needs the Linux kernel, and this is {machine}: run everything in a "
        "container with Docker Desktop, `docker run -it -v .:/work -w /work python:3.12 bash`."
    ]
    if facts.system == "darwin":
        advice.insert(0, BY_DOCKER)
        advice.append("Or in a Linux VM: `brew install lima`, `limactl start`, `lima`.")
    elif facts.system == "win32":
        advice.append("Or in WSL 2: `wsl --install`, then work in its Linux.")
    return advice


def _version(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _always(_: MachineFacts) -> bool:
    return True


def _profile(facts: MachineFacts) -> str:
    """Return an AppArmor profile's text that lets the interpreter make user namespaces."""
    return f"abi <abi/4.0>, profile envweave {facts.python} flags=(unconfined) {{ userns, }}"


def _in(*containers: str) -> Callable[[MachineFacts], bool]:
    return lambda facts: facts.container in containers


def _text(text: str) -> Callable[[MachineFacts], str]:
    return lambda _: text


_RULES = (
    _Rule(
        _USERS,
        _REFUSED,
        lambda facts: facts.userns_clone == 0 and not facts.is_admin,
        _text(
            "User namespaces are forbidden to ordinary users. Allow them: "
            "`sudo sysctl -w kernel.unprivileged_userns_clone=1`, and to keep it "
            "`echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/50-userns.conf`."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: facts.apparmor_restricts == 1 and not facts.is_admin,
        lambda facts: (
            "AppArmor restricts user namespaces of ordinary users. Allow them for this "
            f"interpreter: put `{_profile(facts)}` into /etc/apparmor.d/envweave and run "
            "`sudo apparmor_parser -r /etc/apparmor.d/envweave`; or for all programs: "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
        ),
    ),
    _Rule(
        _USERS,
        _EXHAUSTED,
        lambda facts: facts.max_user_namespaces == 0,
        _text(
            "User namespaces are disabled. Enable them: "
            "`sudo sysctl -w user.max_user_namespaces=15000`, and to keep it "
            "`echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/50-userns.conf`."
        ),
    ),
    _Rule(
        _USERS,
        _EXHAUSTED,
        lambda facts: facts.max_user_namespaces != 0,
        lambda facts: (
            f"All {facts.max_user_namespaces or 'allowed'} user namespaces of this user are in "
            "use, or they are nested 32 levels deep. Close sandboxes, or allow more: "
            "`sudo sysctl -w user.max_user_namespaces=100000`."
        ),
    ),
    _Rule(
        _USERS,
        _UNKNOWN,
        _always,
        _text(
            "This kernel was built without user namespaces: use one with CONFIG_USER_NS=y, such as "
            "those of the distributions."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: (
            facts.container in ("docker", "other")
            and (facts.is_filtered or facts.is_admin or not facts.is_root)
        ),
        _text(
            "A container's default profile forbids namespaces and mounts. Start it with "
            "`docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined`, "
            "or with a seccomp profile that adds to Docker's own clone, unshare, setns, mount, "
            "mount_setattr, umount2, pivot_root and sethostname."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: (
            facts.container in ("docker", "other") and facts.is_root and not facts.is_admin
        ),
        _text(
            "Root in a container lacks the capability: run as an ordinary user there, "
            "`--user 1000`, or add it, `--cap-add SYS_ADMIN`."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        _in("podman"),
        _text(
            "A container's default profile forbids namespaces and mounts. Start it with "
            "`podman run --security-opt seccomp=unconfined --security-opt label=disable "
            "--cap-add SYS_ADMIN`."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        _in("kubernetes"),
        _text(
            "A pod's default profile forbids namespaces and mounts. Set `hostUsers: false` in the "
            "pod's spec, and `securityContext: {seccompProfile: {type: Unconfined}, "
            "appArmorProfile: {type: Unconfined}, capabilities: {add: [SYS_ADMIN]}}` in the "
            "container's; with `hostUsers: false` that capability is confined to the pod."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: facts.container is None and facts.is_filtered,
        _text(
            "A seccomp filter on this process forbids it. Under systemd, remove "
            "`RestrictNamespaces=`, `SystemCallFilter=` and `PrivateUsers=` from the unit."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: (
            facts.container is None
            and not facts.is_filtered
            and not facts.is_admin
            and facts.userns_clone != 0
            and facts.apparmor_restricts != 1
        ),
        _text(
            "A security module forbids user namespaces, or this process is in a chroot. See "
            "`sudo dmesg | grep -iE 'apparmor|avc|denied'`; with SELinux "
            "`sudo setsebool -P unconfined_user_namespaces on` where the policy has it."
        ),
    ),
    _Rule(
        frozenset({"root folder"}),
        frozenset({errno.EINVAL}),
        _always,
        _text(
            "The root folder cannot be changed while this machine runs from its initial "
            "file system in memory (initramfs): boot it from a disk, or use a container."
        ),
    ),
    _Rule(
        frozenset({"landlock"}),
        frozenset({errno.EOPNOTSUPP}),
        lambda facts: facts.modules is None or "landlock" not in facts.modules,
        lambda facts: (
            "Landlock is built into this kernel but not enabled. Boot with "
            f"`lsm={','.join(('landlock', *(facts.modules or ('…',))))}` on the kernel's command "
            "line: in /etc/default/grub, then `sudo update-grub`."
        ),
    ),
    _Rule(
        frozenset({"landlock"}),
        frozenset({errno.ENOSYS}),
        lambda facts: facts.kernel >= _OLDEST["landlock"],
        _text("This kernel was built without Landlock: use one with CONFIG_SECURITY_LANDLOCK=y."),
    ),
    _Rule(
        frozenset({"landlock"}),
        frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}),
        lambda facts: facts.container is not None or facts.is_filtered,
        _text(
            "Old container engines forbid Landlock: upgrade to Docker 20.10.24, containerd 1.6 or "
            "Podman 4.2, or newer."
        ),
    ),
    _Rule(
        frozenset({"seccomp gate"}),
        frozenset({errno.EBUSY}),
        _always,
        _text(
            "Another program already handles the seccomp notifications of this process (LXD, "
            "systemd-nspawn, a container engine), and there can be only one: run outside of it."
        ),
    ),
    _Rule(
        frozenset({"seccomp", "seccomp gate"}),
        _UNKNOWN,
        _always,
        _text(
            "This kernel lacks the required seccomp features: use Linux 5.6 or newer with "
            "CONFIG_SECCOMP_FILTER=y."
        ),
    ),
    _Rule(
        frozenset({"seccomp", "seccomp gate"}),
        _UNKNOWN,
        lambda facts: facts.machine not in ("x86_64", "aarch64"),
        lambda facts: f"The sandbox supports x86_64 and aarch64, and this is {facts.machine}.",
    ),
    _Rule(
        frozenset({"user"}),
        frozenset({errno.EPERM, errno.EINVAL}),
        _always,
        _text(
            "Sessions cannot get separate user ids: give this process CAP_SETUID and "
            "CAP_SETGID, or run it as an ordinary user."
        ),
    ),
    _Rule(
        _ANY,
        _NO_ROOM,
        _always,
        _text(
            "The machine has run out of processes, memory or open files: see `ulimit -u`, "
            "`ulimit -n`, `free -m` and the container's limits."
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class TierReport:
    """The result of trying one tier.

    Attributes:
        name: The name of the tier.
        available: Whether a session could be made with it.
        reason: Why not; empty if it could.
        missing: What it lacks here, a sentence each.
        advice: How to get it, a sentence each.
    """

    name: Isolation
    available: bool
    reason: str = ""
    missing: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def examine() -> list[TierReport]:
    """Try every tier with walls, strongest first, by making a session in it."""
    return [_try("namespace"), _try("landlock")]


def _try(name: Isolation) -> TierReport:
    facts = machine_facts()
    if sys.platform != "linux":
        reason = f"The sandbox needs Linux, and this is {sys.platform}."
        return TierReport(
            name, available=False, reason=reason, advice=tuple(advise("platform", 0, facts))
        )
    from envweave.sandbox.processes.factory import SessionFactory
    from envweave.sandbox.processes.template import WallSetupError

    try:
        factory = SessionFactory(SandboxConfig(isolation=name))
    except IsolationError as error:
        cause = error.__cause__
        assert isinstance(cause, WallSetupError)
        advice = tuple(advise(cause.wall, cause.errno, facts))
        return TierReport(name, available=False, reason=cause.text, advice=advice)
    except SandboxError as error:
        return TierReport(name, available=False, reason=str(error))
    try:
        return TierReport(name, available=True, missing=factory.tier.missing)
    finally:
        factory.close()


_WITHOUT_NAMESPACES = (
    "No namespaces: Landlock protects files, seccomp other processes and the network.",
    "The work folder is on the host's disk: its size is polled, not enforced, and deleted files "
    "that are still open are not counted.",
    "`stat` reveals names, sizes and times of files outside: Landlock does not cover it.",
    "Code can load libraries that it wrote to the work folder, which is not mounted noexec.",
    "Sessions cannot be branched.",
)
NAMES_LISTED = "Programs can list, but not read, files in packages that are not visible."
"""What `profile="shell"` lacks without namespaces."""

_WITHOUT_WALLS = (
    "No isolation: code can do whatever this user can. Only the process limits apply.",
    "Sessions cannot be branched.",
)


@dataclass(frozen=True, slots=True)
class Tier:
    """The isolation tier in use.

    Attributes:
        name: `namespace`, `landlock` or `none`.
        missing: What it lacks on this machine, a sentence each.
        reasons: Why a stronger tier does not work; empty for the strongest.
        native: Whether the compiled extension sets up the walls, which is faster. The walls are
            the same.
    """

    name: Isolation
    missing: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    native: bool = False

    def __str__(self) -> str:
        return self.name


def missing_of(isolation: Isolation, kernel: Sequence[str]) -> list[str]:
    """Return what a tier lacks, including what this kernel lacks."""
    if isolation == "none":
        return list(_WITHOUT_WALLS)
    if isolation == "landlock":
        return [*_WITHOUT_NAMESPACES, *kernel]
    return list(kernel)
