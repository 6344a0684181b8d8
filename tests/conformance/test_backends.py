"""Every backend keeps every promise, for sync and async environments."""

from __future__ import annotations

import pytest

from envweave.testing import BackendConformance


class TestInproc(BackendConformance):
    backend = "inproc"


class TestInprocWithCoroutines(BackendConformance):
    backend = "inproc"
    scripted = "pkg://envweave.testing.scripted:AsyncScriptedEnvironment"


class TestProcess(BackendConformance):
    backend = "process"


@pytest.mark.slow  # starts worker processes
class TestProcessWithCoroutines(BackendConformance):
    backend = "process"
    scripted = "pkg://envweave.testing.scripted:AsyncScriptedEnvironment"


@pytest.mark.slow  # a server process for each environment
class TestHttp(BackendConformance):
    backend = "http"
