"""A server in a container keeps every promise of a backend, on a port and on a unix socket."""

from __future__ import annotations

from typing import Any

import pytest
from containers import BASE, need_images

import envweave as ew
from envweave import LocalDockerProvider
from envweave.testing import BackendConformance


class Containers(BackendConformance):
    """Starts a container for each environment."""

    network = "bridge"

    @pytest.fixture(autouse=True)
    def _images(self) -> None:
        need_images()

    def make(self, env_id: str, **options: Any) -> ew.Env:
        provider = LocalDockerProvider(network=self.network)
        return ew.make(
            env_id, backend="docker_http", docker_image=BASE, provider=provider, **options
        )


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(300)
class TestPort(Containers):
    pass


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(300)
class TestUnixSocket(Containers):
    network = "none"
