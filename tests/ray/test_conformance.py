"""`backend="ray"` keeps every promise, for sync and async environments."""

from __future__ import annotations

from envweave.testing import BackendConformance


class TestRay(BackendConformance):
    backend = "ray"


class TestRayWithCoroutines(BackendConformance):
    backend = "ray"
    scripted = "pkg://envweave.testing.scripted:AsyncScriptedEnvironment"
