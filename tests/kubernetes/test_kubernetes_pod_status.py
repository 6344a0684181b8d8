"""What to expect of a pod, from the statuses that clusters report."""

from __future__ import annotations

from typing import Any

import pytest

from envweave.providers.kubernetes.options import KubernetesOptions
from envweave.providers.kubernetes.pod import Outlook, judge


def pod_status(
    phase: str, *, reason: str | None = None, message: str | None = None, **state: Any
) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase, "reason": reason, "message": message}
    if state:
        beside = {"name": "proxy", "state": {"running": {}}}  # as some clusters add to every pod
        status["containerStatuses"] = [beside, {"name": "server", "state": state}]
    return {"metadata": {"name": "a"}, "status": status}


UNSCHEDULABLE = {
    "metadata": {},
    "status": {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient memory.",
            }
        ],
    },
}
PREEMPTED = {
    "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "phase": "Running",
        "containerStatuses": [{"name": "server", "state": {"running": {}}}],
        "conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted"}],
    },
}


@pytest.mark.parametrize(
    ("pod", "outlook", "why"),
    [
        (pod_status("Pending"), Outlook.WAITING, "waits for a node"),
        (
            pod_status("Pending", waiting={"reason": "ContainerCreating"}),
            Outlook.WAITING,
            "waits (ContainerCreating)",
        ),
        (pod_status("Running", running={"startedAt": "now"}), Outlook.RUNNING, ""),
        (
            pod_status("Pending", waiting={"reason": "ErrImagePull", "message": "not found"}),
            Outlook.HOPELESS,
            "cannot be started (ErrImagePull): not found. Push the image",
        ),
        (
            pod_status("Pending", waiting={"reason": "ErrImageNeverPull"}),
            Outlook.HOPELESS,
            "image_pull_policy='Never' forbids",
        ),
        (
            pod_status("Pending", waiting={"reason": "InvalidImageName", "message": "A B"}),
            Outlook.HOPELESS,
            "Use a name such as",
        ),
        (
            pod_status(
                "Pending",
                waiting={
                    "reason": "CreateContainerConfigError",
                    "message": "container has runAsNonRoot and image will run as root",
                },
            ),
            Outlook.HOPELESS,
            "pass user='1000:1000'",
        ),
        (
            pod_status("Failed", terminated={"reason": "OOMKilled", "exitCode": 137}),
            Outlook.OVER,
            "ran out of memory: it needed more than 2 GiB, and was killed (OOMKilled",
        ),
        (
            pod_status("Failed", terminated={"reason": "Error", "exitCode": 7}),
            Outlook.OVER,
            "exited with code 7",
        ),
        (
            pod_status("Succeeded", terminated={"reason": "Completed", "exitCode": 0}),
            Outlook.OVER,
            "exited with code 0",
        ),
        (
            pod_status("Failed", terminated={"reason": "StartError", "message": "no such file"}),
            Outlook.HOPELESS,
            "could not be started: no such file",
        ),
        (
            pod_status("Failed", reason="Evicted", message="The node was low on memory."),
            Outlook.OVER,
            "was ended by the cluster (Evicted): The node was low on memory",
        ),
        (
            pod_status("Failed", reason="DeadlineExceeded", terminated={"exitCode": 137}),
            Outlook.OVER,
            "more than ttl_s=86400 seconds (DeadlineExceeded)",
        ),
        (pod_status("Failed"), Outlook.OVER, "has ended (Failed)"),
        (
            UNSCHEDULABLE,
            Outlook.WITHOUT_NODE,
            "0/1 nodes are available: 1 Insufficient memory. Request",
        ),
        (PREEMPTED, Outlook.OVER, "was deleted by another client (preempted)"),
        ({}, Outlook.WAITING, "waits for a node"),
    ],
)
def test_statuses_of_clusters_are_understood(pod: Any, outlook: Outlook, why: str) -> None:
    verdict = judge(pod, KubernetesOptions())

    assert verdict.outlook is outlook
    assert why in verdict.why
