"""The contract as a test suite for any environment or backend, and small environments for tests."""

from __future__ import annotations

from envweave.testing.audit import AuditOptions, audit_environment
from envweave.testing.audit_results import AuditedEpisode, AuditReport, PolicyOutcome, Verdict
from envweave.testing.check_result import Check, CheckFailedError, CheckOutcome
from envweave.testing.conformance import (
    BackendConformance,
    EnvironmentConformance,
    check_backend,
    check_environment,
    iter_checks,
)
from envweave.testing.environment_checks import ENVIRONMENT_CHECKS
from envweave.testing.fixture import Subject
from envweave.testing.policy import RandomPolicy
from envweave.testing.scripted import (
    AsyncScriptedEnvironment,
    ScriptedAction,
    ScriptedAgents,
    ScriptedEnvironment,
    ScriptedObservation,
)

__all__ = [
    "ENVIRONMENT_CHECKS",
    "AsyncScriptedEnvironment",
    "AuditOptions",
    "AuditReport",
    "AuditedEpisode",
    "BackendConformance",
    "Check",
    "CheckFailedError",
    "CheckOutcome",
    "EnvironmentConformance",
    "PolicyOutcome",
    "RandomPolicy",
    "ScriptedAction",
    "ScriptedAgents",
    "ScriptedEnvironment",
    "ScriptedObservation",
    "Subject",
    "Verdict",
    "audit_environment",
    "check_backend",
    "check_environment",
    "iter_checks",
]
