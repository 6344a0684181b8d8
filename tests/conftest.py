"""The tiers of the suite, and how several processes share the tests: see `./dev test`.

`--tier fast` runs what takes at most a second or so and needs neither containers nor a cluster;
`--tier slow` runs the rest, `--tier all` both. Without `--tier`, tests that are named on the
command line (a path, or `-m`) all run, and a bare `pytest` runs the fast tier.
"""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("envweave", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("envweave")

# A shell that starts the tests in the background makes them, and all they start, ignore Ctrl-C.
# Tests of interrupts need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_MARKS = ("slow", "docker", "kubernetes", "ray")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["fast", "slow", "all"],
        help="which tests to run; by default the fast ones, or all of those named by path or -m",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier; pytest-xdist passes the choice on to its workers."""
    if config.option.tier is None:
        named = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.markexpr
        config.option.tier = "all" if named else "fast"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier, and begin with the files that take longest.

    The second is for several processes, so that none is left alone with a long file at the end.
    In one process the order stays random.
    """
    slow = {item for item in items if any(map(item.get_closest_marker, SLOW_MARKS))}
    if config.option.tier != "all":
        wanted = {item: (item in slow) == (config.option.tier == "slow") for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not wanted[item]])
        items[:] = [item for item in items if wanted[item]]
    if hasattr(config, "workerinput"):
        long = {item.path for item in slow}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the garbage collector from traversing everything that was imported: it stays anyway."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_logged_losses() -> None:
    """Have the first failure of every test logged, also if an earlier test had an equal one."""
    from envweave.session.loss_log import LOSSES_LOGGED

    LOSSES_LOGGED.clear()
