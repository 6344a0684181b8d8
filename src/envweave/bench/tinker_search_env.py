"""Benchmark a search environment: `python -m envweave.bench.tinker_search_env`.

Measures the built-in `search-v0`, or the `SearchEnv` of a tinker-mxb checkout: the one that
`$TINKER_MXB_PATH` names, else `../tinker-mxb` if that is there. Both run offline, on deterministic
hash embeddings.

These parts of a checkout are used, with its root on the module search path:

- `data_loader`: `Document(doc_id=, text=)`, `QueryExample(query_id=, text=, relevant_doc_ids=)`
- `pipeline_configs`: `default_pipeline_configs()`, the list that an action is an index into
- `search_backend.mixedbread_client`: `MixedbreadClient(api_key=None)`,
  `InMemorySearchBackend(documents, client)`
- `env.search_env`: `SearchEnv(queries=, configs=, backend=, k=, shuffle=)`, with `reset()` and
  `step(index)` as Gym has them
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import envweave as ew
from envweave.bench.report import BenchPlan, BenchReport, measure_all, rehearse
from envweave.codec import Spec
from envweave.envs.search_env import make_corpus
from envweave.errors import format_error

BUILT_IN = "search-v0"
CHECKOUT = "pkg://envweave.bench.tinker_search_env:make_checkout_env"
SIBLING = Path("..") / "tinker-mxb"


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print the figures, and return the exit code.

    Args:
        argv: The command-line options; default: those of this process.

    Raises:
        SystemExit: An option is invalid (2), or help was requested (0).
    """
    parser = argparse.ArgumentParser(
        prog="python -m envweave.bench.tinker_search_env",
        description="Measure steps per second of a search environment, alone and in vectors.",
    )
    add = parser.add_argument
    add("--num-envs", type=_at_least_one, default=8, metavar="N", help="environments in a vector")
    add("--steps", type=_at_least_one, default=1024, metavar="N", help="steps of a vector per turn")
    add("--repeats", type=_at_least_one, default=3, metavar="N", help="turns of each")
    add("--num-docs", type=_at_least_one, default=200, metavar="N")
    add("--num-queries", type=_at_least_one, default=256, metavar="N")
    add("--k", type=_at_least_one, default=10, metavar="N", help="documents that a search returns")
    add("--shuffle", action="store_true", help="shuffle the queries of each episode")
    add("--seed", type=_integer, default=0, metavar="N", help="of documents, queries and actions")
    add("--json", action="store_true", help="print one JSON document instead of tables")
    options = parser.parse_args(argv)

    def random_actions(spec: Spec) -> Callable[[Any], Any]:
        rng = np.random.default_rng(options.seed)
        return lambda _: spec.sample(rng)

    kwargs = {
        name: getattr(options, name) for name in ("num_docs", "num_queries", "k", "shuffle", "seed")
    }
    with contextlib.redirect_stdout(sys.stderr):  # an environment may print
        path = _find_checkout(kwargs)
        env_id = BUILT_IN
        if path is not None:
            env_id, kwargs = CHECKOUT, {"path": path, **kwargs}
        plan = BenchPlan(
            env_id,
            kwargs,
            sizes=[options.num_envs],
            steps=options.steps * options.num_envs,
            repeats=options.repeats,
            seed=options.seed,
            memory=False,
        )
        figures = measure_all(plan, rehearse(plan, random_actions), random_actions)
    environment = BUILT_IN if path is None else f"SearchEnv of {path}"
    if options.json:
        document = {"environment": environment, **figures.as_json()}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write(_report(environment, figures))
    return 0


def make_checkout_env(
    path: str, *, num_docs: int, num_queries: int, k: int, shuffle: bool, seed: int
) -> Any:
    """Return the `SearchEnv` of a tinker-mxb checkout, over the documents of `search-v0`."""
    if path not in sys.path:
        sys.path.insert(0, path)  # its modules import each other by name at any time
    loader = importlib.import_module("data_loader")
    client = importlib.import_module("search_backend.mixedbread_client")
    configs = importlib.import_module("pipeline_configs").default_pipeline_configs()
    corpus = make_corpus(num_docs, num_queries, seed)
    documents = [
        loader.Document(doc_id=f"d{i}", text=f"{one.title} {one.body}")
        for i, one in enumerate(corpus.documents)
    ]
    queries = [
        loader.QueryExample(
            query_id=f"q{i}",
            text=one.text,
            relevant_doc_ids=[f"d{j}" for j in sorted(one.relevant)],
        )
        for i, one in enumerate(corpus.queries)
    ]
    backend = client.InMemorySearchBackend(documents, client.MixedbreadClient(api_key=None))
    search_env = importlib.import_module("env.search_env")
    inner = search_env.SearchEnv(
        queries=queries, configs=configs, backend=backend, k=k, shuffle=shuffle
    )
    return _CheckoutEnv(inner, len(configs))


class _CheckoutEnv(ew.Environment):
    """A `SearchEnv`, whose `step` may return Gym's four values or Gymnasium's five."""

    def __init__(self, inner: Any, num_configs: int) -> None:
        self.action_spec = Annotated[int, ew.Bounds(0, num_configs - 1)]
        self._inner = inner

    def reset(self) -> Any:
        return self._inner.reset()

    def step(self, action: Any) -> Any:
        outcome = self._inner.step(action)
        if isinstance(outcome, tuple) and len(outcome) == 4:
            observation, reward, done, info = outcome
            return observation, reward, done, False, info
        return outcome


def _find_checkout(kwargs: Mapping[str, Any]) -> str | None:
    """Return the path of a usable checkout; print why one is not usable."""
    named = os.environ.get("TINKER_MXB_PATH", "").strip()
    path = (Path(named).expanduser() if named else SIBLING).resolve()
    try:
        if path.is_dir():
            make_checkout_env(str(path), **kwargs).reset()
            return str(path)
        problem = f"TINKER_MXB_PATH={named!r} is not a directory" if named else None
    except Exception as error:  # noqa: BLE001 - the checkout's code may raise anything
        problem = (
            f"The tinker-mxb checkout at {path} has no usable SearchEnv: {format_error(error)}"
        )
    if problem is not None:
        sys.stderr.write(f"{problem}. Measuring the built-in {BUILT_IN} instead.\n")
    return None


def _report(environment: str, figures: BenchReport) -> str:
    plan, solo = figures.plan, figures.solo
    vectors = {f"{one.num_envs} envs, {one.way.name}": one for one in figures.vectors}
    rates = {**solo.rates, **{name: one.rate for name, one in vectors.items() if one.rate}}
    lines = [
        f"{environment}, random actions, median of {plan.repeats} × {plan.steps:,} steps",
        "",
        f"{'':28}{'steps/s':>10}{'spread':>20}{'µs per step':>12}",
    ]
    for name, rate in rates.items():
        spread = f"{rate.low:,.0f}–{rate.high:,.0f}"
        lines.append(f"{name:28}{rate.median:>10,.0f}{spread:>20}{rate.step_us:>12,.1f}")
    lines += [f"{name}: {one.problem}" for name, one in vectors.items() if one.problem]
    lines += ["", f"{figures.machine['processor']}, {figures.machine['cores']} cores"]
    return "\n".join(lines) + "\n"


def _integer(text: str, low: int = 0) -> int:
    if not text.isdecimal() or int(text) < low:
        raise argparse.ArgumentTypeError(f"must be an integer >= {low}, got {text!r}")
    return int(text)


def _at_least_one(text: str) -> int:
    return _integer(text, 1)


if __name__ == "__main__":
    sys.exit(main())
