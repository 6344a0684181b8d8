"""What a session holds of the host's: a user id, a folder, a control group."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from envweave.errors import IsolationError, OptionError
from envweave.sandbox.config import SandboxConfig, visible_files
from envweave.sandbox.host.cgroups import CgroupStock, FoundCgroups, find_cgroups
from envweave.sandbox.host.cleanup import new_folder, sweep_folders
from envweave.sandbox.host.session_cgroups import Cgroup, CgroupLimits
from envweave.sandbox.host.users import UserRange, find_users, may_read, obstacle
from envweave.sandbox.host.work_dirs import WorkFolder, remove_tree
from envweave.sandbox.limits import Limits
from envweave.sandbox.protocol.orders import Isolation

_BESIDE_MEMORY = 64 << 20
"""What a session with one process has beside its memory and its work folder: output, page tables,
what its sockets and pipes hold."""


class SessionResources:
    """What one session holds, until its process is gone.

    Attributes:
        inside: Its user id as its template has it; `None` where it has the template's own.
        folder: Its work folder, where that is on the host's disk.
        cgroup: What bounds its processes together, where anything does.
    """

    def __init__(
        self,
        inside: int | None,
        folder: WorkFolder | None,
        cgroup: Cgroup | None,
        supplies: ResourcePool,
        user: int | None = None,
    ) -> None:
        self.inside = inside
        self.folder = folder
        self.cgroup = cgroup
        self._supplies = supplies
        self._user = user

    def for_branch(self) -> SessionResources:
        """Return what a branch of the session needs: a cgroup of its own, for memory of its own.

        Raises:
            SandboxError: The cgroup could not be made.
        """
        return SessionResources(self.inside, None, self._supplies.take_cgroup(), self._supplies)

    def free(self) -> None:
        """Give it all back. Called once, when every process of the session was killed."""
        if self.folder is not None:
            self.folder.remove()  # before another session may have the user id of its files
        self._supplies.take_back(self.cgroup, self._user)


class ResourcePool:
    """Where belongings come from. May be used by several threads.

    Attributes:
        cgroups: Where their cgroups come from; `None` where none can be made.
    """

    def __init__(self, options: SandboxConfig) -> None:
        self._options = options
        self._users: UserRange | None = None
        self._missing_users = ""
        self._strangers_may_read: bool | None = None
        self.cgroups: CgroupStock | None = None
        self._missing_cgroups = ""
        sweep_folders()
        self._folder = new_folder("sandbox")
        try:
            self._folder.chmod(0o711)
            found = find_users()
            self._users, self._missing_users = found.range, found.reason
            if self._users is not None:
                self._users.take()  # the template's own
                self._check_visible(self._users.first)
            self._find_cgroups()
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        """Where work folders are made, on the host's disk."""
        return self._folder

    def take(self, isolation: Isolation) -> SessionResources:
        """Return what one new session needs.

        Raises:
            SandboxError: There is no more of something.
        """
        limits = self._options.limits
        user = inside = None
        users = self.users(isolation)
        if users is not None:
            user = users.take()
            inside = user - users.first if isolation == "namespace" else user

        held = SessionResources(inside, None, None, self, user)
        try:
            if isolation != "namespace":
                held.folder = WorkFolder(self._folder, user, limits.disk_bytes, limits.files)
            held.cgroup = self.take_cgroup()
        except BaseException:
            held.free()
            raise
        return held

    def take_cgroup(self) -> Cgroup | None:
        """Return a cgroup for a session or a branch; `None` where none can be made.

        Raises:
            SandboxError: The kernel refused to make one.
        """
        return None if self.cgroups is None else self.cgroups.take()

    def take_back(self, cgroup: Cgroup | None, user: int | None) -> None:
        """Take back what a session had, when every process of it was killed."""
        if cgroup is not None and self.cgroups is not None:
            self.cgroups.give_back(cgroup)
        if self._users is not None and user is not None:
            self._users.give_back(user)

    def users(self, isolation: Isolation) -> UserRange | None:
        """Return the ids that sessions of a tier have, each its own; `None` if they share one."""
        if self._users is None or isolation == "none":
            return None
        if isolation == "landlock" and not self._may_strangers_read(self._users.first):
            return None
        return self._users

    def obstacle(self, isolation: Isolation) -> str:
        """Say why a tier must not be used with these supplies; nothing if it may.

        The kernel does not count the processes of root. Where sessions would be root's and no
        control group bounds them, one could fork until the machine stands still; without `fork`
        it has threads, of which memory is a bound.
        """
        if not self._is_uncounted(isolation):
            return ""
        if self.cgroups is not None or self._options.profile != "shell":
            return ""
        return "nothing here bounds how many processes a session of root's starts"

    def _is_uncounted(self, isolation: Isolation) -> bool:
        is_roots = os.getuid() == 0 and self.users(isolation) is None
        return isolation == "landlock" and is_roots

    def missing(self, isolation: Isolation) -> list[str]:
        """Say what sessions of a tier have not got here, a sentence each."""
        lacks = [self._missing_users, self._missing_cgroups]
        if self.cgroups is None and isolation != "none":
            lacks.append(
                "Shared memory without a file, such as mmap.mmap(-1, n), and /dev/zero are "
                "refused: no cgroup counts them."
            )
        alone = self.users(isolation) is not None
        if isolation == "landlock" and self._users is not None and not alone:
            lacks.append(
                "Sessions keep this user's id: no other may read the interpreter, or pass to the "
                "folder of temporary files."
            )
        if isolation != "namespace" and self.cgroups is None and not alone:
            lacks.append(
                "Nothing counts the threads of a session: they are root's, and in no cgroup."
                if self._is_uncounted(isolation)
                else "Sessions share one count of processes and threads with this user."
            )
        return [one for one in lacks if one]

    def close(self) -> None:
        """Give back what no session has. Harmless twice."""
        if self.cgroups is not None:
            self.cgroups.close()
        if self._users is not None:
            self._users.close()
        remove_tree(self._folder)

    def _may_strangers_read(self, stranger: int) -> bool:
        """Say whether another user could read the interpreter and get to the work folders."""
        if self._strangers_may_read is None:
            files = visible_files(self._options)
            paths = (*files.roots, *files.shown)
            closed = obstacle(self._folder, stranger)
            # Nobody may read the folder of work folders, but everybody may pass through it.
            passes = closed is None or closed.name == self._folder.name
            readable = all(obstacle(path, stranger) is None for path in paths)
            self._strangers_may_read = passes and readable
        return self._strangers_may_read

    def _check_visible(self, stranger: int) -> None:
        """Refuse what sessions could not read, since they run as users of their own."""
        for path in self._options.visible:
            if not may_read(path, stranger):
                raise OptionError(
                    f"Sandbox(visible=…): sessions run as users of their own, and {path!r} is "
                    f"closed to others. Open it with: chmod -R o+rX {path}"
                )

    def _find_cgroups(self) -> None:
        wanted = self._options.cgroups
        if wanted == "never":
            return
        found = _cgroups_of(os.getpid())
        if found.cgroups is None and wanted == "always":
            raise IsolationError(f"Sandbox(cgroups='always'): {found.reason}")
        self._missing_cgroups = found.reason
        if found.cgroups is not None:
            found.cgroups.sweep()
            is_shell = self._options.profile == "shell"
            limits = _cgroup_limits(self._options.limits, is_shell=is_shell)
            self.cgroups = CgroupStock(found.cgroups, limits, is_reused=not is_shell)


def _cgroup_limits(limits: Limits, *, is_shell: bool) -> CgroupLimits:
    """Return what a session may use as a whole.

    Many processes may use `memory_bytes` together, files of the work folder included. One process
    has that limit to itself, and meets a `MemoryError` there: what it has beside that memory must
    not have it killed before.
    """
    memory_bytes = limits.memory_bytes
    if not is_shell:
        memory_bytes += limits.disk_bytes + _BESIDE_MEMORY
    return CgroupLimits(memory_bytes=memory_bytes, processes=limits.processes)


@functools.lru_cache(maxsize=1)  # by the id, which a fork changes
def _cgroups_of(_pid: int) -> FoundCgroups:
    """Find out once in the life of this process: it takes the start of another."""
    return find_cgroups()
