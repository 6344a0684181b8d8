"""Environments with pydantic's models keep every promise."""

from __future__ import annotations

import pytest
from environments.typed import Haggle, Market

from envweave.testing import EnvironmentConformance


class TestMarket(EnvironmentConformance):
    def make_environment(self) -> Market:
        return Market()


class TestHaggle(EnvironmentConformance):
    def make_environment(self) -> Haggle:
        return Haggle()


@pytest.mark.slow  # a process for each promise
class TestMarketInAProcess(EnvironmentConformance):
    backend = "process"

    def make_environment(self) -> Market:
        return Market()
