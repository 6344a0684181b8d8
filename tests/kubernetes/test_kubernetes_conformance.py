"""Environments in pods keep every promise of a backend."""

from __future__ import annotations

from typing import Any

import pytest
from containers import BASE

import envweave as ew
from envweave import KubernetesProvider
from envweave.testing import BackendConformance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]


class TestKubernetes(BackendConformance):
    backend = "kubernetes"
    access = "forward"

    def make(self, env_id: str, **options: Any) -> ew.Env:
        small = {"cpu_request": 0.05, "memory_request": "32m", "stop_timeout_s": 0}
        provider = KubernetesProvider(access=self.access, **small)
        return ew.make(
            env_id, backend=self.backend, provider=provider, docker_image=BASE, **options
        )


class TestKubernetesWithCoroutines(TestKubernetes):
    scripted = "pkg://envweave.testing.scripted:AsyncScriptedEnvironment"
