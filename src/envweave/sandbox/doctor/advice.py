"""What to do about a wall that does not stand: sentences with the exact setting or command."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from envweave.sandbox.doctor.machine import Facts

BY_DOCKER = (
    "With a Docker engine, the code of an environment runs in a container instead: "
    "`create_codeact_env(executor='docker')`."
)
"""The way out where an environment is wanted rather than a sandbox."""

_USERS = frozenset({"namespaces", "user namespace"})
_MOUNTS = frozenset({"namespaces", "user namespace", "root folder", "work folder"})
_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_EXHAUSTED = frozenset({errno.ENOSPC, errno.EUSERS})
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_OLDEST = {"root folder": (5, 12), "landlock": (5, 13), "descriptors": (5, 9)}
_ANY = frozenset[str]()


@dataclass(frozen=True, slots=True)
class _Rule:
    """What to say about some walls.

    Attributes:
        walls: Their names; empty for any.
        errnos: What the kernel may have said; empty for anything.
        holds: Whether it is to be said on a machine.
        says: What is said.
    """

    walls: frozenset[str]
    errnos: frozenset[int]
    holds: Callable[[Facts], bool]
    says: Callable[[Facts], str]


def advise(wall: str, number: int, facts: Facts) -> list[str]:
    """Say how to get a wall that does not stand.

    Args:
        wall: Its name.
        number: The error's number from the kernel; 0 if it was not the kernel.
        facts: Of the machine.

    Returns:
        Sentences, the likeliest cause first; none where nothing is known but the failure.
    """
    if facts.system != "linux":
        return _elsewhere(facts)
    said = [
        rule.says(facts)
        for rule in _RULES
        if (not rule.walls or wall in rule.walls)
        and (not rule.errnos or number in rule.errnos)
        and rule.holds(facts)
    ]
    oldest = _OLDEST.get(wall)
    if oldest is not None and facts.kernel < oldest:
        said.insert(
            0,
            f"This needs Linux {_version(oldest)} or newer, and this is {_version(facts.kernel)}: "
            "upgrade the kernel.",
        )
    if not said and number:
        said.append(
            f"The kernel said {errno.errorcode.get(number, number)}. See what it logged: "
            "`sudo dmesg | tail`, `sudo journalctl -k -n 50`."
        )
    return said


def advise_cgroups(facts: Facts) -> list[str]:
    """Say how this process gets cgroups that it may divide among its sessions."""
    if facts.system != "linux":
        return []
    if facts.container == "kubernetes":
        return [
            "A pod's memory limit bounds all sessions together; one for each needs a node whose "
            "container runtime mounts cgroups writable."
        ]
    if facts.container is not None:
        return ["Start the container with `--security-opt writable-cgroups=true` (Docker 28)."]
    if facts.is_root:
        return ["Start it with `systemd-run --scope -p Delegate=yes COMMAND`."]
    return ["Start it with `systemd-run --user --scope -p Delegate=yes COMMAND`."]


def _elsewhere(facts: Facts) -> list[str]:
    machine = {"darwin": "macOS", "win32": "Windows"}.get(facts.system, facts.system)
    ways = [
        f"The walls are made by the Linux kernel, which {machine} has not: run all of it in a "
        "container with Docker Desktop, `docker run -it -v .:/work -w /work python:3.12 bash`."
    ]
    if facts.system == "darwin":
        ways.insert(0, BY_DOCKER)
        ways.append("Or in a Linux machine: `brew install lima`, `limactl start`, `lima`.")
    elif facts.system == "win32":
        ways.append("Or in WSL 2: `wsl --install`, then work in its Linux.")
    return ways


def _version(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _always(_: Facts) -> bool:
    return True


def _profile(facts: Facts) -> str:
    """Return an AppArmor profile's text that lets the interpreter make user namespaces."""
    return f"abi <abi/4.0>, profile envweave {facts.python} flags=(unconfined) {{ userns, }}"


def _in(*containers: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.container in containers


def _said(text: str) -> Callable[[Facts], str]:
    return lambda _: text


_RULES = (
    _Rule(
        _USERS,
        _REFUSED,
        lambda facts: facts.userns_clone == 0 and not facts.is_admin,
        _said(
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
            "AppArmor takes the rights from user namespaces of ordinary users. Let this "
            f"interpreter have them: put `{_profile(facts)}` into /etc/apparmor.d/envweave and run "
            "`sudo apparmor_parser -r /etc/apparmor.d/envweave`; or all programs: "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
        ),
    ),
    _Rule(
        _USERS,
        _EXHAUSTED,
        lambda facts: facts.most_user_namespaces == 0,
        _said(
            "User namespaces are turned off. Turn them on: "
            "`sudo sysctl -w user.max_user_namespaces=15000`, and to keep it "
            "`echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/50-userns.conf`."
        ),
    ),
    _Rule(
        _USERS,
        _EXHAUSTED,
        lambda facts: facts.most_user_namespaces != 0,
        lambda facts: (
            f"All {facts.most_user_namespaces or 'allowed'} user namespaces of this user are in "
            "use, or they are nested 32 deep. Close sandboxes, or allow more: "
            "`sudo sysctl -w user.max_user_namespaces=100000`."
        ),
    ),
    _Rule(
        _USERS,
        _UNKNOWN,
        _always,
        _said(
            "This kernel was built without user namespaces: use one with CONFIG_USER_NS=y, as the "
            "distributions' are."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: (
            facts.container in ("docker", "other")
            and (facts.is_filtered or facts.is_admin or not facts.is_root)
        ),
        _said(
            "A container's default profile forbids namespaces and mounts. Start it with "
            "`docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined`, "
            "or with a seccomp profile that is Docker's own plus clone, unshare, setns, mount, "
            "mount_setattr, umount2, pivot_root and sethostname."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: (
            facts.container in ("docker", "other") and facts.is_root and not facts.is_admin
        ),
        _said(
            "Root in a container has not the right to it: be an ordinary user there, "
            "`--user 1000`, or have that right too, `--cap-add SYS_ADMIN`."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        _in("podman"),
        _said(
            "A container's default profile forbids namespaces and mounts. Start it with "
            "`podman run --security-opt seccomp=unconfined --security-opt label=disable "
            "--cap-add SYS_ADMIN`."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        _in("kubernetes"),
        _said(
            "A pod's default profile forbids namespaces and mounts. Set `hostUsers: false` in the "
            "pod's spec, and `securityContext: {seccompProfile: {type: Unconfined}, "
            "appArmorProfile: {type: Unconfined}, capabilities: {add: [SYS_ADMIN]}}` in the "
            "container's; with `hostUsers: false` that right ends at the pod."
        ),
    ),
    _Rule(
        _MOUNTS,
        _REFUSED,
        lambda facts: facts.container is None and facts.is_filtered,
        _said(
            "A seccomp filter around this process forbids it. Under systemd, take "
            "`RestrictNamespaces=`, `SystemCallFilter=` and `PrivateUsers=` out of the unit."
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
        _said(
            "A security module forbids user namespaces, or this process is in a chroot. See "
            "`sudo dmesg | grep -iE 'apparmor|avc|denied'`; with SELinux "
            "`sudo setsebool -P unconfined_user_namespaces on` where the policy has it."
        ),
    ),
    _Rule(
        frozenset({"root folder"}),
        frozenset({errno.EINVAL}),
        _always,
        _said(
            "The root folder cannot be changed where this machine still runs from its initial "
            "file system in memory: boot it from a disk, or start this in a container."
        ),
    ),
    _Rule(
        frozenset({"landlock"}),
        frozenset({errno.EOPNOTSUPP}),
        lambda facts: facts.modules is None or "landlock" not in facts.modules,
        lambda facts: (
            "Landlock is in this kernel and not turned on. Boot with "
            f"`lsm={','.join(('landlock', *(facts.modules or ('…',))))}` on the kernel's command "
            "line: in /etc/default/grub, then `sudo update-grub`."
        ),
    ),
    _Rule(
        frozenset({"landlock"}),
        frozenset({errno.ENOSYS}),
        lambda facts: facts.kernel >= _OLDEST["landlock"],
        _said("This kernel was built without Landlock: use one with CONFIG_SECURITY_LANDLOCK=y."),
    ),
    _Rule(
        frozenset({"landlock"}),
        frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}),
        lambda facts: facts.container is not None or facts.is_filtered,
        _said(
            "Old container engines forbid Landlock: upgrade to Docker 20.10.24, containerd 1.6 or "
            "Podman 4.2, or newer."
        ),
    ),
    _Rule(
        frozenset({"seccomp gate"}),
        frozenset({errno.EBUSY}),
        _always,
        _said(
            "Somebody around this process already answers for its system calls (LXD, "
            "systemd-nspawn, a container engine with seccomp notification), and there can be only "
            "one: run outside of it."
        ),
    ),
    _Rule(
        frozenset({"seccomp", "seccomp gate"}),
        _UNKNOWN,
        _always,
        _said(
            "This kernel cannot filter system calls as it must: use Linux 5.6 or newer with "
            "CONFIG_SECCOMP_FILTER=y."
        ),
    ),
    _Rule(
        frozenset({"seccomp", "seccomp gate"}),
        _UNKNOWN,
        lambda facts: facts.machine not in ("x86_64", "aarch64"),
        lambda facts: f"The walls are known for x86_64 and aarch64, and this is {facts.machine}.",
    ),
    _Rule(
        frozenset({"user"}),
        frozenset({errno.EPERM, errno.EINVAL}),
        _always,
        _said(
            "Sessions cannot be given user ids of their own: give this process CAP_SETUID and "
            "CAP_SETGID, or run it as an ordinary user."
        ),
    ),
    _Rule(
        _ANY,
        _NO_ROOM,
        _always,
        _said(
            "The machine has no room for more processes, memory or open files: see `ulimit -u`, "
            "`ulimit -n`, `free -m` and the container's limits."
        ),
    ),
)
