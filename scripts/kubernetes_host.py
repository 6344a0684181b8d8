"""What a Kubernetes node changes on its machine: noted before it starts, and undone after it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BRIDGE = "envweave-k8s0"
SETTINGS = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"]
FOLDERS = [
    "/usr/libexec/kubernetes",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/run/flannel",
]
CGROUPS = ["k8s.io", "kubepods"]
TABLES = ["filter", "nat"]


def ask(*command: str | Path) -> str:
    """Return what a program prints, whether or not it was content."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout


def birth_of(pid: int) -> int | None:
    """Return when a process started, which tells it from a later one with its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def note() -> dict[str, Any]:
    """Return how the machine is now."""
    return {
        "settings": {one: Path("/proc/sys", one).read_text().strip() for one in SETTINGS},
        "folders": [one for one in FOLDERS if Path(one).exists()],
        "cgroups": [str(one) for one in _cgroups()],
        "chains": {table: _chains(table) for table in TABLES},
        "bridge": _has_bridge(),
    }


def restore(before: dict[str, Any], place: Path, say: Callable[[str], None]) -> None:
    """Make the machine as it was; what else is left below `place` is unmounted."""
    for mount in _mounts(place):
        subprocess.run(["umount", mount], capture_output=True, check=False)
    for mount in _mounts(place):
        subprocess.run(["umount", "--lazy", mount], check=False)
    if not before["bridge"] and _has_bridge():
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False)
    for table in TABLES:
        new = [one for one in _chains(table) if one not in before["chains"][table]]
        _remove_chains(table, new)
    for name, value in before["settings"].items():
        path = Path("/proc/sys", name)
        if path.read_text().strip() != value:
            path.write_text(value)
    for folder in FOLDERS:
        if folder not in before["folders"]:
            shutil.rmtree(folder, ignore_errors=True)
    for top in _cgroups():
        if str(top) not in before["cgroups"] and not _remove_cgroup(top):
            say(f"{top} still has processes, and was left.")


def _has_bridge() -> bool:
    return Path("/sys/class/net", BRIDGE).exists()


def _mounts(place: Path) -> list[str]:
    """Return what is mounted below a folder, the innermost first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    found = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    return sorted((one for one in found if one.startswith(f"{place}/")), reverse=True)


def _chains(table: str) -> list[str]:
    found: list[str] = re.findall(
        r"^:(CNI-\S+)", ask("iptables-save", "-t", table), flags=re.MULTILINE
    )
    return found


def _remove_chains(table: str, chains: list[str]) -> None:
    rules = ask("iptables-save", "-t", table).splitlines()
    for rule in rules:
        words = _words(rule)
        if rule.startswith("-A") and words[1] not in chains and set(words) & set(chains):
            _iptables(table, "-D", *words[1:])
    for option in ("-F", "-X"):
        for chain in chains:
            _iptables(table, option, chain)


def _words(rule: str) -> list[str]:
    """Return the arguments in a line of `iptables-save`, whose comments are in quotes."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', rule)
    return [re.sub(r"\\(.)", r"\1", quoted) or plain for quoted, plain in found]


def _iptables(table: str, *arguments: str) -> None:
    subprocess.run(["iptables", "-w", "-t", table, *arguments], capture_output=True, check=False)


def _cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    tops = [root, *(one for one in root.iterdir() if one.is_dir() and not one.is_symlink())]
    return [one / name for one in tops for name in CGROUPS if (one / name).is_dir()]


def _remove_cgroup(top: Path) -> bool:
    for _ in range(50):
        folders = sorted((one for one in top.rglob("*") if one.is_dir()), reverse=True)
        for folder in [*folders, top]:
            try:
                folder.rmdir()
            except OSError:
                break
        if not top.exists():
            return True
        time.sleep(0.1)  # a process that has ended may still be counted
    return False
