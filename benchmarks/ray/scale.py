"""What a large Ray cluster would do, computed from what was measured on one machine.

`benchmarks/run ray --docs` stores measurements; `RESULTS` makes tables and a chart of them for
docs/explanation/scale.md. Nothing here needs Ray.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measurement.pages import Results
from benchmarks.measurement.plots import LineChart
from benchmarks.measurement.tables import Table

ENVS_PER_NODE, CORES_PER_NODE = 100, 4
ONE_ACTOR_EACH = "Ray, one actor per environment"
NODES = (1, 3, 10, 30, 100)
NETWORK_BYTES_PER_S = 10e9 / 8
"""The driver's network card: 10 Gbit/s."""


@dataclass(frozen=True)
class Load:
    """What the environments of a cluster do.

    Attributes:
        name: What the page calls them.
        step_s: How long a step takes.
        uses_cpu: Whether it computes all that time, or waits. One that waits is async: the result
            of each step is an object, and not a row of columns.
        bytes: How many bytes a step sends to the driver.
    """

    name: str
    step_s: float
    uses_cpu: bool
    bytes: float


NEAR_EMPTY = Load("near-empty", 2e-6, uses_cpu=True, bytes=48)
LOADS = (
    NEAR_EMPTY,
    Load("64 KiB observations", 2e-6, uses_cpu=True, bytes=65552),
    Load("10 ms of CPU", 0.01, uses_cpu=True, bytes=48),
    Load("waits for 1 s", 1.0, uses_cpu=False, bytes=48),
)


@dataclass(frozen=True)
class Model:
    """How long one batch takes.

    Attributes:
        worker_s: The driver's CPU time for each worker.
        env_s: The driver's CPU time for each environment.
        object_s: The same for async environments.
        byte_s: The driver's CPU time for each byte of an observation.
        round_trip_s: How long a batch of one worker takes, without the driver's CPU time.
    """

    worker_s: float
    env_s: float
    object_s: float
    byte_s: float
    round_trip_s: float

    @classmethod
    def fit(cls, results: dict[str, Any]) -> Model:
        """Fit the model to the measurements of one to eight workers, and of async environments."""
        rows = results["workers"]
        small = [row for row in rows if row["bytes_per_step"] < 1000]
        sizes = np.array([[row["workers"], row["num_envs"]] for row in small], np.float64)
        spent = np.array([row["driver_ms_per_batch"] / 1000 for row in small])
        # Relative errors count, so that the largest batches do not decide alone.
        (worker_s, env_s), *_ = np.linalg.lstsq(sizes / spent[:, None], np.ones(len(spent)))
        env_s = max(env_s, 0.0)
        large = max(rows, key=lambda row: row["num_envs"] * row["bytes_per_step"])
        for_bytes_s = (
            large["driver_ms_per_batch"] / 1000
            - large["workers"] * worker_s
            - large["num_envs"] * env_s
        )
        one = min((row for row in small if row["workers"] == 1), key=lambda row: row["num_envs"])
        waited_s = (one["batch_ms"] - one["driver_ms_per_batch"]) / 1000
        byte_s = max(for_bytes_s, 0.0) / (large["num_envs"] * large["bytes_per_step"])
        object_s = results["sleeping"]["driver_us_per_step"] / 1e6
        return cls(worker_s, env_s, object_s, byte_s, max(waited_s, 0.0))

    def parts(self, load: Load, nodes: int) -> dict[str, float]:
        """Return for how long a batch keeps each resource busy, one worker on each node."""
        envs = nodes * ENVS_PER_NODE
        row_s = self.env_s if load.uses_cpu else self.object_s
        node_s = load.step_s * (ENVS_PER_NODE / CORES_PER_NODE if load.uses_cpu else 1)
        return {
            "the driver's core": nodes * self.worker_s + envs * (row_s + load.bytes * self.byte_s),
            "the driver's network": envs * load.bytes / NETWORK_BYTES_PER_S,
            "the environments": node_s,
            "one round trip": self.round_trip_s,
        }

    def batch_s(self, load: Load, nodes: int) -> float:
        """Return how long a batch takes, if nothing overlaps but the network and the driver."""
        parts = self.parts(load, nodes)
        driver_s = max(parts["the driver's core"], parts["the driver's network"])
        return driver_s + parts["the environments"] + parts["one round trip"]

    def steps_per_s(self, load: Load, nodes: int) -> float:
        """Return how many steps per second one driver takes."""
        return nodes * ENVS_PER_NODE / self.batch_s(load, nodes)


def chart(results: dict[str, Any]) -> LineChart:
    """Draw the model: steps per second by the number of nodes."""
    model = Model.fit(results)
    return LineChart(
        "One driver, 100 environments on each node (model)",
        "nodes",
        "steps/s (higher is better)",
        {
            load.name: [(float(nodes), model.steps_per_s(load, nodes)) for nodes in NODES]
            for load in LOADS
        },
        lambda nodes: f"{nodes:,.0f}",
        lambda rate: f"{rate:,.0f}",
    )


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the measurements and the model."""
    found = []
    for name, make in (
        ("workers", _model_tables),
        ("sleeping", _sleeping_table),
        ("rates", _rates_table),
        ("nodes", _nodes_table),
        ("recovery", _recovery_tables),
        ("faults", _faults_table),
    ):
        if name in results:
            found += make(results)
    return found


def _model_tables(results: dict[str, Any]) -> list[Table]:
    model = Model.fit(results)
    costs = (
        ("each worker, in a batch", f"{model.worker_s * 1e6:,.0f} µs of the driver's CPU"),
        ("each environment, in a batch", f"{model.env_s * 1e6:.2f} µs of the driver's CPU"),
        (
            "each async environment, in a batch",
            f"{model.object_s * 1e6:.1f} µs of the driver's CPU",
        ),
        (
            "each 64 KiB of observations",
            f"{model.byte_s * 65536 * 1e6:,.0f} µs of the driver's CPU",
        ),
        ("a round trip beside that", f"{model.round_trip_s * 1e3:.1f} ms"),
    )
    rows = []
    for load in LOADS:
        parts = model.parts(load, 100)
        batch_s, first = model.batch_s(load, 100), max(parts, key=parts.__getitem__)
        rows.append(
            (
                load.name,
                f"{batch_s * 1000:,.0f} ms",
                f"{model.steps_per_s(load, 100):,.0f}",
                first,
                f"{parts[first] / batch_s:.0%}",
            )
        )
    fits = []
    for row in results["workers"]:
        size = row["bytes_per_step"] if row["bytes_per_step"] > 1000 else 0
        predicted_s = row["workers"] * model.worker_s + row["num_envs"] * (
            model.env_s + size * model.byte_s
        )
        fits.append(
            (
                f"{row['workers']}",
                row["kind"],
                f"{row['num_envs']:,}",
                f"{row['driver_ms_per_batch']:.2f} ms",
                f"{predicted_s * 1000:.2f} ms",
                f"{row['batch_ms']:.1f} ms",
            )
        )
    return [
        Table("What a batch costs", ("for", "cost"), costs),
        Table(
            "10,000 environments on 100 nodes (model)",
            ("environments", ">batch", ">steps/s", "busy longest", ">share of the batch"),
            rows,
        ),
        Table(
            "How well the model fits",
            (">workers", "kind", ">environments", ">driver CPU", ">model", ">batch"),
            fits,
        ),
    ]


def _sleeping_table(results: dict[str, Any]) -> list[Table]:
    row = results["sleeping"]
    rows = [
        ("a batch", f"{row['batch_s']:.2f} s"),
        ("steps per second", f"{row['steps_per_s']:,.0f}"),
        ("the driver's CPU, per step", f"{row['driver_us_per_step']:.1f} µs"),
        ("the first reset of all", f"{row['reset_s']:.1f} s"),
    ]
    title = f"{row['num_envs']:,} environments that wait for 1 s, on one machine (measured)"
    return [Table(title, ("", ""), rows)]


def _rates_table(results: dict[str, Any]) -> list[Table]:
    usual = {
        row["kind"]: statistics.median(row["steps_per_s"])
        for row in results["rates"]
        if row["way"] == ONE_ACTOR_EACH
    }
    rows = []
    for row in results["rates"]:
        rates = row["steps_per_s"]
        median = statistics.median(rates)
        rows.append(
            (
                row["kind"],
                row["way"],
                f"{median:,.0f}",
                f"{min(rates):,.0f} to {max(rates):,.0f}",
                f"{median / usual[row['kind']]:.1f}×",
            )
        )
    columns = ("environments", "stepped by", ">steps/s", ">in five rounds", ">of one actor each")
    return [Table("64 environments, against other ways (measured)", columns, rows)]


def _recovery_tables(results: dict[str, Any]) -> list[Table]:
    row = results["recovery"]
    ended = row["ended"]
    events = [
        ("before", f"{row['steps_per_s_before']:,.0f} steps/s on three nodes"),
        ("0 s", "a node is killed"),
        (f"{row['noticed_s']:.2f} s", f"{ended.get('lost', 0):,} episodes end as lost"),
        (f"{row['recovered_s']:.2f} s", "every row steps again, on two nodes"),
        ("after", f"{row['steps_per_s_after']:,.0f} steps/s"),
    ]
    episodes = [
        ("begun", f"{row['begun']:,}"),
        *((f"ended as {reason}", f"{count:,}") for reason, count in ended.items()),
        ("running when it was stopped", f"{row['running']:,}"),
        ("missing", f"{row['missing']:,}"),
        ("ended twice", f"{row['twice']:,}"),
    ]
    title = f"A node of three is killed under {row['environments']} environments (measured)"
    return [
        Table(title, ("when", "what"), events),
        Table("Every episode of that run", ("episodes", ">"), episodes),
    ]


def _nodes_table(results: dict[str, Any]) -> list[Table]:
    rows = [
        (
            f"{row['nodes']}",
            row["kind"],
            f"{row['num_envs']}",
            f"{row['steps_per_s']:,.0f}",
            f"{row['batch_ms']:.1f} ms",
            f"{row['batch_p99_ms']:.1f} ms",
            f"{row['driver_ms_per_batch'] / row['num_envs'] * 1000:.1f} µs",
            f"{row['bytes_per_step']:,.0f}",
        )
        for row in results["nodes"]
    ]
    columns = (
        ">nodes", "kind", ">environments", ">steps/s", ">batch", ">p99", ">driver CPU a step",
        ">bytes a step",
    )  # fmt: skip
    return [Table("One to three nodes on one machine (measured)", columns, rows)]


def _faults_table(results: dict[str, Any]) -> list[Table]:
    row = results["faults"]
    lost = ", ".join(f"{count:,} {reason}" for reason, count in row["lost"].items()) or "none"
    rows = [
        ("episodes asked for", f"{row['episodes']:,}"),
        ("returned", f"{row['returned']:,}"),
        ("usable", f"{row['usable']:,}"),
        ("missing", f"{row['missing']:,}"),
        ("returned twice", f"{row['twice']:,}"),
        ("attempts that failed", lost),
        ("played again", f"{row['replayed']:,}"),
        ("killed", f"{row['killed_actors']} worker actors, {row['killed_nodes']} node"),
        ("time", f"{row['seconds']:.1f} s"),
    ]
    return [Table("Episodes under kills, 128 at a time (measured)", ("", ""), rows)]


def conditions(results: dict[str, Any]) -> str:
    """Say on what it was measured."""
    machine = results["machine"]
    highest = max(results.get("load_average", {}).values(), default=0.0)
    load = (
        f" The machine was shared: its load average was up to {highest:g}, so times are too long "
        "rather than too short."
        if highest > 2 * machine["cores"]
        else ""
    )
    return (
        f"Measured on {machine['cores']} cores of {machine['processor']} with Python "
        f"{machine['python']} and Ray {machine['versions'].get('ray')}; all nodes were on this one "
        f"machine.{load}"
    )


RESULTS = Results("ray", tables, chart, page="docs/explanation/scale.md", conditions=conditions)
