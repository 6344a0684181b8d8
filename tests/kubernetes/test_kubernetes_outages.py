"""An API server that is down or hangs is reported with the reason, and never hangs a caller."""

from __future__ import annotations

import subprocess
import sys
from subprocess import PIPE

import pytest
from containers import ECHO, away, hung, left_of, names, own_mark

import envweave as ew
from envweave import KubernetesProvider
from envweave.errors import EnvironmentLostError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("pods_alone"),
]


def pods() -> KubernetesProvider:
    return KubernetesProvider(stop_timeout_s=0, cpu_request=0.05, memory_request="32m")


def mine() -> list[str]:
    return names("pods", own_mark())


def test_an_api_server_that_is_gone_is_reported_without_hanging() -> None:
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
        assert "cannot be reached. The API server at https" in end.cause
        assert "KUBECONFIG" in end.cause
        assert not set(left) & set(mine())


def test_a_hung_api_server_is_reported_without_hanging() -> None:
    with ew.make("counter-v0", provider=pods(), docker_image=ECHO) as env:
        env.reset()
        env.step({"delta": 1})
        with hung("apiserver"):
            end = env.step({"delta": 1}).end
        env.reset()

        assert (end.reason, end.blame) == ("lost", "infrastructure")
        assert "does not answer (timed out)" in end.cause


WITHOUT_API = """
import sys
from envweave.providers.kubernetes.provider import KubernetesProvider
from envweave.providers.cleanup import Owner
provider = KubernetesProvider(cpu_request=0.05, memory_request="32m", service=True)
provider.start_container("echo-env:latest")
print(Owner.here().mark, flush=True)
sys.stdin.readline()
provider.stop_container()
print("stopped", flush=True)
sys.stdin.readline()
"""


def test_objects_that_could_not_be_deleted_are_deleted_at_exit() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_API], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as program:
        mark = program.stdout.readline().strip()
        with away("apiserver"):
            program.stdin.write("\n")
            program.stdin.flush()
            line = program.stdout.readline()
        left = left_of(mark)
        program.communicate("\n", timeout=60)

    assert line == "stopped\n"
    assert list(left) == ["pods", "secrets", "services"]
    assert left_of(mark) == {}
