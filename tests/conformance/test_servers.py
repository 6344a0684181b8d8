"""A server keeps every promise of a backend, whichever way it is reached."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from servers import served

import envweave as ew
from envweave.testing import BackendConformance

ASYNC = "pkg://envweave.testing.scripted:AsyncScriptedEnvironment"


class Servers(BackendConformance):
    """Serves each environment from a thread of this process."""

    encoding = "msgpack"
    is_unix = False
    workers = 0

    @pytest.fixture(autouse=True)
    def _serve(self, tmp_path: Path) -> Iterator[None]:
        self._paths = (tmp_path / f"{i}.sock" for i in itertools.count())
        with ExitStack() as self._servers:
            yield

    def make(
        self, env_id: str, *, autoreset: bool = False, forkable: bool = False, **kwargs: Any
    ) -> ew.Env:
        uds = next(self._paths) if self.is_unix else None
        url = self._servers.enter_context(
            served(env_id, uds=uds, workers=self.workers, drain_s=0, **kwargs)
        )
        return ew.make(
            env_id,
            base_url=url,
            encoding=self.encoding,
            autoreset=autoreset,
            forkable=forkable,
        )


class TestMessagePack(Servers):
    pass


class TestMessagePackWithCoroutines(Servers):
    scripted = ASYNC


class TestJson(Servers):
    encoding = "json"


class TestUnixSocket(Servers):
    is_unix = True


@pytest.mark.slow  # starts worker processes
class TestWorkers(Servers):
    workers = 1
