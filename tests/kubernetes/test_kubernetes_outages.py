"""An API server that goes away, or hangs: told with the reason, and never a hang."""

from __future__ import annotations

import pytest
from docker_images import ECHO
from kubernetes_cluster import away, hung, names

import envweave as ew
from envweave.errors import EnvironmentLostError
from envweave.providers.kubernetes import KubernetesProvider
from envweave.providers.reaper import Owner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("pods_alone"),
]


def pods() -> KubernetesProvider:
    return KubernetesProvider(stop_timeout_s=0, cpu_request=0.05, memory_request="32m")


def mine() -> list[str]:
    return names("pods", Owner.here().mark)


def test_an_api_server_that_is_gone_is_told_and_nobody_hangs() -> None:
    with ew.make("counter-v0", provider=pods(), docker_image=ECHO) as env:
        env.reset()
        env.step({"delta": 1})
        left = mine()
        with away("apiserver"):
            end = env.step({"delta": 1}).end
            with pytest.raises(EnvironmentLostError, match=r"API server at https.* not answer"):
                env.reset()
        # What could not be deleted then is deleted when the next one is started.
        env.reset()

        assert (end.reason, end.blame) == ("lost", "infrastructure")
        assert "is out of reach. The API server at https" in end.cause
        assert "KUBECONFIG" in end.cause
        assert not set(left) & set(mine())


def test_an_api_server_that_hangs_is_told_and_nobody_hangs_with_it() -> None:
    with ew.make("counter-v0", provider=pods(), docker_image=ECHO) as env:
        env.reset()
        env.step({"delta": 1})
        with hung("apiserver"):
            end = env.step({"delta": 1}).end
        env.reset()

        assert (end.reason, end.blame) == ("lost", "infrastructure")
        assert "does not answer (timed out)" in end.cause
