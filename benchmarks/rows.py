"""What is compared with what, and by how much envweave means to be ahead."""

from __future__ import annotations

from dataclasses import dataclass

from contenders import (
    ASYNC,
    ENVPOOL,
    FIRST,
    FIRST_PROCESS,
    LOOP,
    PROCESS,
    PUFFER,
    PUFFER_WORKERS,
    SERIAL,
    SUBPROC,
    SYNC,
    THREADS,
)


@dataclass(frozen=True, slots=True)
class Target:
    """Ours against the best of some others.

    Attributes:
        against: The others.
        at_least: How many times as fast ours is to be; `None` where nothing was promised.
    """

    against: tuple[str, ...]
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    Attributes:
        key: Its short name.
        title: What is compared.
        kind: Which environment everyone steps.
        num_envs: How many of them.
        ours: Whom the others are compared with.
        targets: The others.
        beside: Who else is measured, without being compared.
    """

    key: str
    title: str
    kind: str
    num_envs: int
    ours: str
    targets: tuple[Target, ...]
    beside: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Everyone who takes part."""
        others = [name for target in self.targets for name in target.against]
        return list(dict.fromkeys([self.ours, *others, *self.beside]))


_IN_PROCESS = (SYNC, PUFFER)


def _in_process(kind: str, what: str, wide: float, narrow: float) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"serial-{kind}-{num_envs}",
            f"in this process, {what}",
            kind,
            num_envs,
            SERIAL,
            (Target(_IN_PROCESS, at_least),),
        )
        for num_envs, at_least in ((256, wide), (64, narrow))
    )


ROWS: tuple[Row, ...] = (
    *_in_process("own", "own buffer", 3.0, 2.5),
    *_in_process("fresh", "fresh arrays", 1.7, 1.7),
    *_in_process("infos", "with infos", 4.0, 4.0),
    Row(
        "serial-cartpole-256",
        "in this process, CartPole",
        "cartpole",
        256,
        SERIAL,
        (Target(_IN_PROCESS, 0.95), Target((ENVPOOL,))),
    ),
    Row(
        "process-own-256",
        "in worker processes, own buffer",
        "own",
        256,
        PROCESS,
        (Target((ASYNC,), 40.0), Target((PUFFER_WORKERS,), 2.0), Target((SUBPROC,))),
        (SERIAL,),
    ),
    Row(
        "process-cartpole-256",
        "in worker processes, CartPole",
        "cartpole",
        256,
        PROCESS,
        (Target((ASYNC,)), Target((PUFFER_WORKERS,)), Target((ENVPOOL,))),
    ),
    Row(
        "process-cpu-64",
        "in worker processes, 200 µs of computing",
        "cpu",
        64,
        PROCESS,
        (Target((SERIAL,), 1.7), Target((ASYNC,)), Target((PUFFER_WORKERS,))),
    ),
    Row(
        "async-io-256",
        "on one event loop, 1 ms of waiting",
        "io",
        256,
        LOOP,
        (Target((ASYNC,), 10.0),),
        (THREADS,),
    ),
    Row(
        "stragglers-256",
        "first-ready, 5 % of steps take 50 ms",
        "stragglers",
        256,
        FIRST,
        (Target((ASYNC,), 15.0), Target((LOOP,))),
        (FIRST_PROCESS,),
    ),
)

SIZES = (1, 16, 64, 256, 1024)
GROWTH = {
    SERIAL: 1024,
    PROCESS: 1024,
    SYNC: 1024,
    PUFFER: 1024,
    PUFFER_WORKERS: 1024,
    ASYNC: 256,
    SUBPROC: 256,
}
"""Who is measured as the number grows, and how far: a process an environment ends somewhere."""

WEIGHED = (SERIAL, PROCESS, THREADS, SYNC, PUFFER, PUFFER_WORKERS, ASYNC, SUBPROC)
WEIGHED_SIZE = 256
OVERHEAD_US = 1.0
"""What `make` may add to a step of one environment, in microseconds."""
