"""What keeps sessions in on this machine: found out by putting up the walls, never by guessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envweave.sandbox.orders import Isolation

_WITHOUT_NAMESPACES = (
    "No namespaces: Landlock keeps files outside, seccomp other processes and the network.",
    "The work folder is on the host's disk: its size is watched, not enforced, and files that are "
    "deleted but open are not seen.",
    "`stat` tells names, sizes and times of files outside: Landlock has no right for it.",
    "Code can load libraries that it wrote to the work folder, since nothing is mounted there.",
    "Sessions cannot be branched.",
)
NAMES_LISTED = (
    "Programs can list the names of files in packages that are not visible, and not read them."
)
"""What a shell without namespaces has not got: programs list folders with hidden packages."""

_WITHOUT_WALLS = (
    "No walls: code can do whatever this user can. Only the limits of a process hold.",
    "Sessions cannot be branched.",
)


@dataclass(frozen=True, slots=True)
class Tier:
    """The walls that stand.

    Attributes:
        name: `namespace`, `landlock` or `none`.
        missing: What a stronger machine would have, a sentence each.
        reasons: Why a stronger tier does not stand; empty for the strongest.
        native: Whether the compiled extension puts them up, which is quicker. They are the same.
    """

    name: Isolation
    missing: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    native: bool = False

    def __str__(self) -> str:
        return self.name


def missing_of(isolation: Isolation, kernel: Sequence[str]) -> list[str]:
    """Return what a tier has not got, with what this kernel has not."""
    if isolation == "none":
        return list(_WITHOUT_WALLS)
    if isolation == "landlock":
        return [*_WITHOUT_NAMESPACES, *kernel]
    return list(kernel)
