"""The sandbox section of `envweave doctor`, on this machine and with fewer kernel features."""

from __future__ import annotations

import json
import sys

import pytest

from envweave.cli.commands.doctor import print_sandbox
from envweave.sandbox import TierReport

# Starts the command behind a filter that refuses calls, as a container's default profile does.
BEHIND_A_FILTER = """
import errno, platform, sys
from envweave.cli import main
from envweave.sandbox.walls import capabilities, seccomp
refused = seccomp.Rule(seccomp.refuse(errno.EPERM))
policy = seccomp.SeccompPolicy(
    dict.fromkeys({calls}, refused), default=seccomp.ALLOW, unknown=seccomp.ALLOW
)
capabilities.no_new_privileges()
seccomp.install(seccomp.assemble(policy, platform.machine()))
sys.exit(main())
"""
NAMESPACES = ["unshare", "setns", "mount", "mount_setattr", "pivot_root", "umount2"]
LANDLOCK = ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the walls are the Linux kernel's")


@on_linux
def test_the_tier_of_this_machine_is_reported(envweave):
    parsed = json.loads(envweave("doctor", "--json").stdout)["sandbox"]

    assert set(parsed) == {"tier", "missing", "next", "tiers", "users", "cgroups", "packages"}
    assert [one["name"] for one in parsed["tiers"]] == ["namespace", "landlock"]
    standing = [one["name"] for one in parsed["tiers"] if one["available"]]
    assert parsed["tier"] == (standing[0] if standing else None)
    assert parsed["packages"]["visible"] == "the standard library and numpy"
    assert parsed["packages"]["hidden"] > 0


@pytest.mark.slow  # starts containers of its own
@on_linux
def test_behind_a_filter_without_namespaces_the_tier_is_landlock_with_advice(process):
    ran = process("doctor", "--json", code=BEHIND_A_FILTER.format(calls=NAMESPACES))

    parsed = json.loads(ran.stdout)["sandbox"]
    assert parsed["tier"] == "landlock"
    assert any("No namespaces" in one for one in parsed["missing"])
    assert [one["tier"] for one in parsed["next"]] == ["namespace"]
    assert "namespaces" in parsed["next"][0]["reason"]
    assert any("seccomp" in one for one in parsed["next"][0]["advice"])
    assert ran.code == 0


@pytest.mark.slow  # starts containers of its own
@on_linux
def test_behind_a_filter_without_either_there_is_no_tier_and_no_error(process):
    ran = process("doctor", code=BEHIND_A_FILTER.format(calls=NAMESPACES + LANDLOCK))

    assert "tier none: sandboxed code cannot run here" in ran.text
    assert "Tier namespace is not available here." in ran.text
    assert "Tier landlock is not available here." in ran.text
    assert ran.code == 0


def test_on_macos_the_alternatives_are_printed(capsys):
    tiers = [TierReport("namespace", False, "The walls are Linux's", (), ("Use `docker run`.",))]
    report = {
        "tier": None,
        "missing": [],
        "next": [
            {"tier": one.name, "reason": one.reason, "advice": list(one.advice)} for one in tiers
        ],
        "tiers": tiers,
        "users": {"count": 0, "first": None, "reason": "Sessions share the user id."},
        "cgroups": {"version": None, "cpus": False, "reason": "No cgroups.", "advice": ["Try it."]},
        "packages": None,
    }

    print_sandbox(report)

    parsed = " ".join(capsys.readouterr().out.split())
    assert "tier none: sandboxed code cannot run here" in parsed
    assert "user ids Sessions share the user id. cgroups No cgroups. Try it." in parsed
    assert (
        "Tier namespace is not available here. The walls are Linux's. • Use `docker run`." in parsed
    )
