"""10^5 steps over connections that are cut at random points: each runs exactly once."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from environments.served import Tally
from hostile_servers import CuttingProxy
from servers import served

import envweave as ew

STEPS = 100_000
MEAN_BYTES = 40_000  # about 150 steps between two cuts


@pytest.mark.slow  # 10^5 steps over the network
@pytest.mark.timeout(900)
def test_100_000_steps_over_connections_that_are_cut_run_exactly_once() -> None:
    with served(Tally) as url:
        address = ("127.0.0.1", urlsplit(url).port or 0)
        with (
            CuttingProxy(address, seed=3, mean_bytes=MEAN_BYTES) as proxy,
            ew.make(f"http://127.0.0.1:{proxy.port}") as env,
        ):
            env.reset(seed=1)
            step = env.step
            seen = []
            for _ in range(STEPS):
                result = step({"do": "step"})
                seen.append((result.observation.at, result.step_index, result.done))
            taken = env.state().at  # type: ignore[attr-defined]

    assert seen == [(i, i, False) for i in range(1, STEPS + 1)]
    assert taken == STEPS
    assert proxy.cuts > 200
