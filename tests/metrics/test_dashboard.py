"""The example dashboard for Grafana, and the guide, name metrics that a server really has."""

from __future__ import annotations

import json
import re
from urllib.request import urlopen

import pytest
from installations import ROOT
from servers import served, wait_for

import envweave as ew

DASHBOARD = (ROOT / "docs/assets/grafana-dashboard.json").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/guides/serving.md").read_text(encoding="utf-8")


def names(text: str) -> set[str]:
    """The names of metrics in a text; those of the dashboard's own words have no underscore."""
    return set(re.findall(r"\benvweave_\w+", text))


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """The names of the samples of a server that has had a session."""
    with served("counter-v0", done_at=1) as url:

        def metrics() -> str:
            with urlopen(f"{url}/metrics") as reply:
                return reply.read().decode()

        with ew.make(url) as env:
            env.reset()
            env.step({"delta": 1})
        wait_for(lambda: "envweave_sessions_closed_total" in metrics())
        return {line.split("{")[0].split()[0] for line in metrics().splitlines() if line[0] != "#"}


def test_every_metric_of_the_dashboard_is_exposed(exposed: set[str]) -> None:
    expressions = " ".join(
        target["expr"] for panel in json.loads(DASHBOARD)["panels"] for target in panel["targets"]
    )

    assert names(expressions) - exposed == set()


def test_every_exposed_metric_is_in_the_guide_and_on_the_dashboard(exposed: set[str]) -> None:
    shown = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed}

    assert shown - names(GUIDE) == set()
    assert shown - {re.sub(r"_(bucket|sum|count)$", "", name) for name in names(DASHBOARD)} == set()


def test_every_metric_of_the_guide_is_exposed(exposed: set[str]) -> None:
    shown = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed}
    table = GUIDE.partition("## Watch it")[2].partition("\n## ")[0]

    assert names(table) - shown == set()
