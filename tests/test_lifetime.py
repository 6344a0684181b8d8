"""Guards of objects that own a process or a socket."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from envweave.lifetime import AtExit, CloseGuard, OwnerProcess


class Resource:
    """Notes when it is released."""

    def __init__(self, *, was_open: bool = True) -> None:
        self.releases = 0
        self._was_open = was_open

    def release(self) -> bool:
        self.releases += 1
        return self._was_open


class Owner:
    """Owns a resource until it is closed."""

    def __init__(self, resource: Resource, at_exit: AtExit = AtExit.RELEASE) -> None:
        self.guard = CloseGuard(self, resource.release, "An owner was dropped.", at_exit=at_exit)


@pytest.mark.parametrize("at_exit", AtExit)
def test_an_object_that_is_dropped_is_released_with_a_warning(at_exit: AtExit) -> None:
    resource = Resource()
    owner = Owner(resource, at_exit)

    with pytest.warns(ResourceWarning, match="An owner was dropped"):
        del owner

    assert resource.releases == 1


def test_a_closed_object_is_dropped_silently() -> None:
    resource = Resource()
    owner = Owner(resource)

    assert [owner.guard.is_armed, owner.guard.disarm(), owner.guard.disarm()] == [True, True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del owner

    assert resource.releases == 0


def test_a_released_resource_causes_no_warning() -> None:
    resource = Resource(was_open=False)
    owner = Owner(resource)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del owner

    assert resource.releases == 1


@pytest.mark.parametrize(
    ("at_exit", "printed"), [("RELEASE", "released\n"), ("WARN", "released\n"), ("NOTHING", "")]
)
def test_what_happens_at_the_end_of_the_process_is_a_choice(at_exit: str, printed: str) -> None:
    program = (
        "from envweave.lifetime import AtExit, CloseGuard\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        f"owner.guard = CloseGuard(owner, lambda: print('released'), 'dropped', "
        f"at_exit=AtExit.{at_exit})\n"
        "import builtins; builtins.owner = owner\n"  # alive until the very end
    )

    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == printed
    assert ("ResourceWarning: dropped" in done.stderr) == (at_exit == "WARN")


def test_a_forked_process_is_not_the_owner() -> None:
    owner = OwnerProcess()

    if not (child := os.fork()):
        os._exit(int(owner.is_current))

    assert os.waitpid(child, 0)[1] == 0
    assert owner.is_current
