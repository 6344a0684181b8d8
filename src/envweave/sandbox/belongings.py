"""What a session holds of the host's: a user id, a folder, a control group."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from envweave.errors import IsolationError, OptionError
from envweave.sandbox.cgroups import Cgroups, find_cgroups
from envweave.sandbox.folders import WorkFolder, remove_tree
from envweave.sandbox.leftovers import new_folder, sweep_folders
from envweave.sandbox.options import Options
from envweave.sandbox.orders import Isolation
from envweave.sandbox.planning import visible_files
from envweave.sandbox.session_cgroups import Cgroup, CgroupLimits
from envweave.sandbox.users import UserRange, find_users, may_read, obstacle


class Belongings:
    """What one session holds, until its family is gone.

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
        give_back: Callable[[], None],
    ) -> None:
        self.inside = inside
        self.folder = folder
        self.cgroup = cgroup
        self._give_back = give_back

    def free(self) -> None:
        """Give it all back. Called once, when no process of the session lives any more."""
        if self.cgroup is not None:
            self.cgroup.kill_all()
            self.cgroup.remove()
        if self.folder is not None:  # last: nobody is there any more to change it
            self.folder.remove()
        self._give_back()


class Supplies:
    """Where belongings come from. May be used by several threads."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._names = itertools.count()
        self._users: UserRange | None = None
        self._missing_users = ""
        self._strangers_may_read: bool | None = None
        self._cgroups: Cgroups | None = None
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

    def take(self, isolation: Isolation) -> Belongings:
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

        def give_back() -> None:
            if users is not None and user is not None:
                users.give_back(user)

        held = Belongings(inside, None, None, give_back)
        try:
            if isolation != "namespace":
                held.folder = WorkFolder(self._folder, user, limits.disk_bytes, limits.files)
            if self._cgroups is not None:
                held.cgroup = self._cgroups.create(
                    f"session-{next(self._names)}",
                    CgroupLimits(memory_bytes=limits.memory_bytes, processes=limits.processes),
                )
        except BaseException:
            held.free()
            raise
        return held

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
        if self._cgroups is None and self._options.cgroups == "auto":
            self._cgroups = find_cgroups().cgroups
        if self._cgroups is not None or self._options.profile != "shell":
            return ""
        return "nothing here bounds how many processes a session of root's starts"

    def _is_uncounted(self, isolation: Isolation) -> bool:
        is_roots = os.getuid() == 0 and self.users(isolation) is None
        return isolation == "landlock" and is_roots

    def missing(self, isolation: Isolation) -> list[str]:
        """Say what sessions of a tier have not got here, a sentence each."""
        lacks = [self._missing_users, self._missing_cgroups]
        alone = self.users(isolation) is not None
        if isolation == "landlock" and self._users is not None and not alone:
            lacks.append(
                "Sessions keep this user's id: no other may read the interpreter, or pass to the "
                "folder of temporary files."
            )
        if isolation != "namespace" and self._cgroups is None and not alone:
            lacks.append(
                "Nothing counts the threads of a session: they are root's, and in no cgroup."
                if self._is_uncounted(isolation)
                else "Sessions share one count of processes and threads with this user."
            )
        return [one for one in lacks if one]

    def close(self) -> None:
        """Give back what no session has. Harmless twice."""
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
        if wanted == "never" or (wanted == "auto" and self._options.profile != "shell"):
            return
        found = find_cgroups()
        if found.cgroups is None and wanted == "always":
            raise IsolationError(f"Sandbox(cgroups='always'): {found.reason}")
        self._cgroups = found.cgroups
        self._missing_cgroups = found.reason
