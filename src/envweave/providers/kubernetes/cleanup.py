"""What pods of others are left in a cluster, and the end of them.

Every pod says which process started it, and until when it may live. Whoever starts the next one
deletes those of processes of this machine that are gone, and those whose time ran out, whosever
they are. A process on another machine, or before this machine was last started, is never taken for
gone: its pods end when their time runs out.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, final

from envweave.errors import StartupError
from envweave.providers.cleanup import remove_leftovers
from envweave.providers.kubernetes.cluster import LOOK_S, Cluster, ClusterError
from envweave.providers.kubernetes.manifests import EXPIRES

logger = logging.getLogger("envweave.providers")

KINDS = ("services", "pods", "secrets")

_SLACK = timedelta(minutes=10)  # by which clocks may differ
_undeleted: dict[tuple[str, str, str, str], Cluster] = {}
_lock = threading.Lock()  # over `_undeleted`


def delete_later(cluster: Cluster, kind: str, name: str) -> None:
    """Have something of this process's deleted when the cluster can be reached again.

    That is tried when the next one is started there, and at the latest when the process ends.
    """
    with _lock:
        if not _undeleted:
            atexit.unregister(_delete_at_last)
            atexit.register(_delete_at_last)
        _undeleted[cluster.url, cluster.namespace, kind, name] = cluster


def _delete_at_last() -> None:
    with _lock:
        left = dict(_undeleted)
        _undeleted.clear()
    silent = set()
    for (url, _, kind, name), cluster in left.items():
        if url in silent:
            continue
        try:
            cluster.delete(kind, name, timeout_s=LOOK_S)
        except StartupError as error:
            logger.debug("%s is left: %s", name, error)
            silent.add(url)
        finally:
            cluster.close()


def sweep(cluster: Cluster) -> int:
    """Delete what nobody needs any more; return how many things that were.

    Raises:
        ClusterError: The API server does not answer.
    """
    count = 0
    with _lock:
        mine = [one for one in _undeleted if one[:2] == (cluster.url, cluster.namespace)]
    for one in mine:
        cluster.delete(one[2], one[3])
        with _lock:
            _undeleted.pop(one, None)
        count += 1
    for kind in KINDS:
        try:
            count += remove_leftovers(_OwnedObjects(cluster, kind))
        except ClusterError:
            raise
        except StartupError as error:
            # Not everybody may look at secrets, for one; they go with their pods.
            logger.debug("nobody looked for %s that are left: %s", kind, error)
    return count


@final
class _OwnedObjects:
    """The pods of a namespace, or another kind of thing, as far as they are listed and deleted."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind

    def labels(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return what is said of all that have such a label; what has expired is gone already."""
        found: dict[str, Mapping[str, str]] = {}
        for name, about in self._cluster.described(self._kind, label).items():
            if _has_expired(about):
                self.remove(name)
            elif not about.get("deletionTimestamp"):
                found[name] = about.get("annotations") or {}
        return found

    def remove(self, container: str) -> None:
        """Delete one."""
        self._cluster.delete(self._kind, container)


def _has_expired(about: Mapping[str, Any]) -> bool:
    told = str((about.get("annotations") or {}).get(EXPIRES) or "")
    try:
        return datetime.fromisoformat(told) + _SLACK < datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return False
