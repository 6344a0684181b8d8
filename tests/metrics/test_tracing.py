"""Spans of episodes, with OpenTelemetry's own SDK; nothing at all without a tracer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from installations import venv_python, with_envweave

import envweave as ew

SETUP = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("program")

import envweave as ew


def report():
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    print(json.dumps([
        {
            "name": span.name,
            "parent": names.get(span.parent.span_id) if span.parent else None,
            "ok": span.status.is_ok,
            "events": [event.name for event in span.events],
            **{name.removeprefix("envweave."): one for name, one in span.attributes.items()},
        }
        for span in spans
    ]))

"""


def spans_of(code: str, folder: Path) -> list[dict[str, object]]:
    done = subprocess.run(
        [venv_python("metrics"), "-W", "error", "-c", SETUP + code],
        cwd=folder,
        env=with_envweave(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # starts Python anew, with a library
def test_an_episode_is_a_span_with_its_calls_below(tmp_path):
    spans = spans_of(
        """
class Traced(ew.Environment):
    def reset(self, *, seed: int | None = None):
        return 0, {}

    def step(self, action: int):
        with tracer.start_as_current_span("inside"):
            return 0, 2.0, action == 1, False, {}

with tracer.start_as_current_span("training"), ew.make(Traced) as env:
    env.reset(seed=7, episode_id="first")
    env.step(0)
    env.step(1)
report()
""",
        tmp_path,
    )

    assert [(span["name"], span["parent"]) for span in spans] == [
        ("envweave.reset", "envweave.episode"),
        ("inside", "envweave.step"),
        ("envweave.step", "envweave.episode"),
        ("inside", "envweave.step"),
        ("envweave.episode", "training"),
        ("envweave.step", "envweave.episode"),
        ("training", None),
    ]
    episode = spans[4]
    assert (episode["env_id"], episode["episode_id"], episode["seed"]) == ("Traced", "first", "7")
    assert (episode["reason"], episode["length"], episode["ok"]) == ("terminated", 2, True)
    assert (spans[5]["step_index"], spans[5]["reward"]) == (2, 2.0)


@pytest.mark.slow  # starts Python anew, with a library
def test_failures_refusals_and_episodes_that_were_left_are_marked(tmp_path):
    spans = spans_of(
        """
class Failing(ew.Environment):
    def reset(self):
        return 0, {}

    def step(self, action: int):
        raise OSError("disk full")

with ew.make(Failing, autoreset=True) as env:
    env.reset()
    try:
        env.step("up")
    except ew.errors.ActionError:
        pass
    env.step(0)
report()
""",
        tmp_path,
    )

    (refused,) = [span for span in spans if span["events"]]
    failed, left = [span for span in spans if span["name"] == "envweave.episode"]
    assert (refused["name"], refused["ok"], refused["events"]) == (
        "envweave.step",
        False,
        ["exception"],
    )
    assert (failed["reason"], failed["blame"], failed["ok"]) == ("error", "environment", False)
    assert left["reason"] == "left"


@pytest.mark.slow  # starts Python anew, with a library
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_episodes_of_a_rollout_have_spans_of_their_own(backend, tmp_path):
    spans = spans_of(
        f"""
def agent(result):
    return {{"delta": 1}}

if __name__ == "__main__":
    with ew.pool("counter-v0", size=2, backend="{backend}", done_at=2) as pool:
        ew.rollout(pool, agent, episodes=3).run()
    report()
""",
        tmp_path,
    )

    names = [span["name"] for span in spans]
    assert names.count("envweave.episode") == names.count("envweave.reset") == 3
    assert names.count("envweave.step") == 6
    assert all(
        span["parent"] == "envweave.episode" for span in spans if span["name"] == "envweave.step"
    )


def test_without_a_tracer_nothing_is_put_around_an_environment():
    with ew.make("counter-v0") as env:
        assert type(env._transport).__module__ == "envweave.session.driver"
