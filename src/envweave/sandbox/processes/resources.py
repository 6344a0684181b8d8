"""Host resources of sessions, and their pool: user ids, work folders, control groups."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from envweave.errors import IsolationError, OptionError
from envweave.sandbox.config import SandboxConfig, visible_files
from envweave.sandbox.execution import Limits
from envweave.sandbox.host.cgroups import CgroupPool, FoundCgroups, find_cgroups
from envweave.sandbox.host.cleanup import new_folder, sweep_folders
from envweave.sandbox.host.session_cgroups import Cgroup, CgroupLimits
from envweave.sandbox.host.users import UserRange, blocking_path, find_users, may_read
from envweave.sandbox.host.work_dirs import WorkFolder, remove_tree
from envweave.sandbox.protocol.orders import Isolation

_BESIDE_MEMORY = 64 << 20
"""What a session with one process uses besides its memory and its work folder: output, page tables,
buffers of sockets and pipes."""


class SessionResources:
    """What one session uses, until its process is gone.

    Attributes:
        user_inside: Its user id in the namespace of its template; `None` for the template's own.
        folder: Its work folder, where that is on the host's disk.
        cgroup: What limits its processes as a whole, where there is one.
    """

    def __init__(
        self,
        user_inside: int | None,
        folder: WorkFolder | None,
        cgroup: Cgroup | None,
        pool: ResourcePool,
        user: int | None = None,
    ) -> None:
        self.user_inside = user_inside
        self.folder = folder
        self.cgroup = cgroup
        self._pool = pool
        self._user = user

    def for_branch(self) -> SessionResources:
        """Return what a branch of the session needs: a separate cgroup, for its separate memory.

        Raises:
            SandboxError: The cgroup could not be made.
        """
        return SessionResources(self.user_inside, None, self._pool.take_cgroup(), self._pool)

    def free(self) -> None:
        """Return it all to the pool. Called once, when every process of the session was killed."""
        if self.folder is not None:
            self.folder.remove()  # before another session can get the user id of its files
        self._pool.release(self.cgroup, self._user)


class ResourcePool:
    """Where the resources of sessions come from. Thread-safe.

    Attributes:
        cgroups: Where cgroups come from; `None` where none can be made.
    """

    def __init__(self, options: SandboxConfig) -> None:
        self._options = options
        self._users: UserRange | None = None
        self._missing_users = ""
        self._others_may_read: bool | None = None
        self.cgroups: CgroupPool | None = None
        self._missing_cgroups = ""
        sweep_folders()
        self._folder = new_folder("sandbox")
        try:
            self._folder.chmod(0o711)
            found = find_users()
            self._users, self._missing_users = found.range, found.reason
            if self._users is not None:
                self._users.acquire()  # the template's own
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
            SandboxError: A resource is exhausted.
        """
        limits = self._options.limits
        user = user_inside = None
        users = self.users(isolation)
        if users is not None:
            user = users.acquire()
            user_inside = user - users.first if isolation == "namespace" else user

        resources = SessionResources(user_inside, None, None, self, user)
        try:
            if isolation != "namespace":
                resources.folder = WorkFolder(self._folder, user, limits.disk_bytes, limits.files)
            resources.cgroup = self.take_cgroup()
        except BaseException:
            resources.free()
            raise
        return resources

    def take_cgroup(self) -> Cgroup | None:
        """Return a cgroup for a session or a branch; `None` where none can be made.

        Raises:
            SandboxError: The kernel refused to make one.
        """
        return None if self.cgroups is None else self.cgroups.acquire()

    def release(self, cgroup: Cgroup | None, user: int | None) -> None:
        """Take back what a session used, when every process of it was killed."""
        if cgroup is not None and self.cgroups is not None:
            self.cgroups.release(cgroup)
        if self._users is not None and user is not None:
            self._users.release(user)

    def users(self, isolation: Isolation) -> UserRange | None:
        """Return the user ids of a tier's sessions, one for each; `None` if they share one."""
        if self._users is None or isolation == "none":
            return None
        if isolation == "landlock" and not self._may_others_read(self._users.first):
            return None
        return self._users

    def why_unusable(self, isolation: Isolation) -> str:
        """Return why a tier must not be used with these resources; "" if it may.

        The kernel does not count the processes of root. If sessions ran as root without a control
        group, one could fork until the machine stalls; without `fork` it only has threads, which
        its memory limit bounds.
        """
        if not self._is_uncounted(isolation):
            return ""
        if self.cgroups is not None or self._options.profile != "shell":
            return ""
        return "the number of processes of a session that runs as root cannot be limited here"

    def _is_uncounted(self, isolation: Isolation) -> bool:
        is_roots = os.getuid() == 0 and self.users(isolation) is None
        return isolation == "landlock" and is_roots

    def missing(self, isolation: Isolation) -> list[str]:
        """Return what sessions of a tier lack here, a sentence each."""
        lacks = [self._missing_users, self._missing_cgroups]
        if self.cgroups is None and isolation != "none":
            lacks.append(
                "Anonymous shared memory, such as mmap.mmap(-1, n), and /dev/zero are refused: no "
                "cgroup counts them."
            )
        alone = self.users(isolation) is not None
        if isolation == "landlock" and self._users is not None and not alone:
            lacks.append(
                "Sessions run as this user: other users cannot read the interpreter, or enter the "
                "folder for temporary files."
            )
        if isolation != "namespace" and self.cgroups is None and not alone:
            lacks.append(
                "The threads of a session are not counted: they run as root, and in no cgroup."
                if self._is_uncounted(isolation)
                else "Sessions share one limit of processes and threads with this user."
            )
        return [one for one in lacks if one]

    def close(self) -> None:
        """Release everything that no session uses. Harmless twice."""
        if self.cgroups is not None:
            self.cgroups.close()
        if self._users is not None:
            self._users.close()
        remove_tree(self._folder)

    def _may_others_read(self, other_user: int) -> bool:
        """Whether another user could read the interpreter and reach the work folders."""
        if self._others_may_read is None:
            files = visible_files(self._options)
            paths = (*files.roots, *files.shown)
            blocked_at = blocking_path(self._folder, other_user)
            # The parent of the work folders is not readable, but may be traversed.
            passes = blocked_at is None or blocked_at.name == self._folder.name
            readable = all(blocking_path(path, other_user) is None for path in paths)
            self._others_may_read = passes and readable
        return self._others_may_read

    def _check_visible(self, other_user: int) -> None:
        """Refuse paths that sessions could not read, since they run as separate users."""
        for path in self._options.visible:
            if not may_read(path, other_user):
                raise OptionError(
                    f"Sandbox(visible=…): sessions run as separate users, and {path!r} is not "
                    f"readable by others. Fix it with: chmod -R o+rX {path}"
                )

    def _find_cgroups(self) -> None:
        requested = self._options.cgroups
        if requested == "never":
            return
        found = _cgroups_of(os.getpid())
        if found.cgroups is None and requested == "always":
            raise IsolationError(f"Sandbox(cgroups='always'): {found.reason}")
        self._missing_cgroups = found.reason
        if found.cgroups is not None:
            found.cgroups.sweep()
            is_shell = self._options.profile == "shell"
            limits = _cgroup_limits(self._options.limits, is_shell=is_shell)
            self.cgroups = CgroupPool(found.cgroups, limits, is_reused=not is_shell)


def _cgroup_limits(limits: Limits, *, is_shell: bool) -> CgroupLimits:
    """Return what a session may use as a whole.

    Several processes share `memory_bytes`, files of the work folder included. A single process has
    that limit to itself and gets a `MemoryError` there: what it uses besides that memory must not
    get it killed before.
    """
    memory_bytes = limits.memory_bytes
    if not is_shell:
        memory_bytes += limits.disk_bytes + _BESIDE_MEMORY
    return CgroupLimits(memory_bytes=memory_bytes, processes=limits.processes)


@functools.lru_cache(maxsize=1)  # keyed by the process id, which a fork changes
def _cgroups_of(_pid: int) -> FoundCgroups:
    """Find out once per process: it requires starting another one."""
    return find_cgroups()
