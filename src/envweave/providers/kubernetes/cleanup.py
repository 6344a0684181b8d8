"""Deletes pods that were left in a cluster.

Every pod has annotations with its owner and its expiry. A process that starts a pod first deletes
the pods of processes of this machine that are gone, and all expired ones. A process on another
machine, or of an earlier boot of this machine, is never assumed to be gone: its pods expire.
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

_SLACK = timedelta(minutes=10)  # clocks may differ
_undeleted: dict[tuple[str, str, str, str], Cluster] = {}
_lock = threading.Lock()  # over `_undeleted`


def delete_later(cluster: Cluster, kind: str, name: str) -> None:
    """Delete an object of this process when the cluster can be reached again.

    That is tried when the next pod is started there, and when the process ends.
    """
    with _lock:
        if not _undeleted:
            atexit.unregister(_delete_at_exit)
            atexit.register(_delete_at_exit)
        _undeleted[cluster.url, cluster.namespace, kind, name] = cluster


def _delete_at_exit() -> None:
    with _lock:
        undeleted = dict(_undeleted)
        _undeleted.clear()
    unreachable = set()
    for (url, _, kind, name), cluster in undeleted.items():
        if url in unreachable:
            continue
        try:
            cluster.delete(kind, name, timeout_s=LOOK_S)
        except StartupError as error:
            logger.debug("%s was not deleted: %s", name, error)
            unreachable.add(url)
        finally:
            cluster.close()


def sweep(cluster: Cluster) -> int:
    """Delete what is no longer needed; return the number of objects.

    Raises:
        ClusterError: The API server does not answer.
    """
    count = 0
    with _lock:
        keys = [key for key in _undeleted if key[:2] == (cluster.url, cluster.namespace)]
    for key in keys:
        cluster.delete(key[2], key[3])
        with _lock:
            _undeleted.pop(key, None)
        count += 1
    for kind in KINDS:
        try:
            count += remove_leftovers(_OwnedObjects(cluster, kind))
        except ClusterError:
            raise
        except StartupError as error:
            # For instance no permission to list secrets; they are deleted with their pods.
            logger.debug("listing %s for cleanup failed: %s", kind, error)
    return count


@final
class _OwnedObjects:
    """The objects of one kind in a namespace, such as pods: listing and deleting them."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind

    def labels(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return the annotations of all objects with this label; delete expired ones."""
        found: dict[str, Mapping[str, str]] = {}
        for name, about in self._cluster.described(self._kind, label).items():
            if _has_expired(about):
                self.remove(name)
            elif not about.get("deletionTimestamp"):
                found[name] = about.get("annotations") or {}
        return found

    def remove(self, container: str) -> None:
        """Delete an object."""
        self._cluster.delete(self._kind, container)


def _has_expired(about: Mapping[str, Any]) -> bool:
    expires = str((about.get("annotations") or {}).get(EXPIRES) or "")
    try:
        return datetime.fromisoformat(expires) + _SLACK < datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return False
