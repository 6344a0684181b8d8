"""envweave's own sandbox for sandbox.py, on each of its tiers."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from ordered import NotAvailableError
from sandbox_box import Box
from sandbox_code import add

from envweave.errors import EnvWeaveError
from envweave.sandbox import Sandbox


class OurSession:
    """A session of the sandbox."""

    def __init__(self, given: Any) -> None:
        self.given, self.close = given, given.close

    def run(self, code: str) -> Any:
        result = self.given.run(code)
        if not result.success:
            raise RuntimeError(f"{result.exception_type}: {result.exception_message}")
        return result.return_value


def _open(*, cores: int = 1, **options: Any) -> Box:
    # As a worker of a server does: to hand over to another core takes longer than the work.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    is_built = importlib.util.find_spec("envweave.sandbox._spawn") is not None
    try:
        sandbox = Sandbox(tools={"add": add}, **options)
    except EnvWeaveError as error:
        raise NotAvailableError(str(error)) from None
    return Box(
        lambda: OurSession(sandbox.session()),
        many=lambda count: [OurSession(one) for one in sandbox.sessions(count)],
        branch=lambda session: OurSession(session.given.branch()),
        close=sandbox.close,
        setting={"cores": cores, "extension": is_built and options.get("native", True)},
    )


def open_namespace() -> Box:
    return _open(isolation="namespace")


def open_on_any_core() -> Box:
    return _open(cores=len(os.sched_getaffinity(0)), isolation="namespace")


def open_without_extension() -> Box:
    return _open(isolation="namespace", native=False)


def open_warm() -> Box:
    return _open(isolation="namespace", warm=16)


def open_landlock() -> Box:
    return _open(isolation="landlock")
