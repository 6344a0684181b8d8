"""`python -m envweave.bench.tinker_search_env`: figures of the built-in, or of a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from envweave.bench.tinker_search_env import main

SMALL = ["--num-envs", "2", "--steps", "4", "--repeats", "1", "--num-docs", "20", "--num-queries"]
SMALL += ["6"]

CHECKOUT = {
    "data_loader.py": """
from dataclasses import dataclass

@dataclass
class Document:
    doc_id: str
    text: str

@dataclass
class QueryExample:
    query_id: str
    text: str
    relevant_doc_ids: list
""",
    "pipeline_configs.py": "def default_pipeline_configs():\n    return list(range(6))\n",
    "search_backend/__init__.py": "",
    "search_backend/mixedbread_client.py": """
class MixedbreadClient:
    def __init__(self, api_key=None):
        assert api_key is None  # offline

class InMemorySearchBackend:
    def __init__(self, documents, client):
        self.documents = documents

    def search(self, text, k):
        words = set(text.split())
        def overlap(document):
            return -len(words & set(document.text.split()))
        return [one.doc_id for one in sorted(self.documents, key=overlap)][:k]
""",
    "env/__init__.py": "",
    "env/search_env.py": """
class SearchEnv:
    def __init__(self, queries, configs, backend, k, shuffle):
        self.queries, self.configs, self.backend, self.k = queries, configs, backend, k
        self.at = 0

    def reset(self):
        print("a checkout may print")
        return self.queries[self.at].text

    def step(self, action):
        self.configs[action]
        query = self.queries[self.at]
        found = self.backend.search(query.text, self.k)
        self.at = (self.at + 1) % len(self.queries)
        reward = float(any(one in query.relevant_doc_ids for one in found))
        return self.queries[self.at].text, reward, True, {}
""",
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tinker-mxb checkout beside the current directory."""
    root = tmp_path / "tinker-mxb"
    for name, text in CHECKOUT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No checkout unless a test makes one; its modules are forgotten again."""
    monkeypatch.delenv("TINKER_MXB_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in ("data_loader", "pipeline_configs", "search_backend", "env"):
        for module in [one for one in sys.modules if one.partition(".")[0] == name]:
            del sys.modules[module]


@pytest.mark.slow  # starts worker processes
def test_the_built_in_environment_is_measured_alone_and_in_every_vector(capsys) -> None:
    assert main([*SMALL, "--shuffle", "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert (shown["environment"], shown["id"]) == ("search-v0", "search-v0")
    assert shown["kwargs"] == {
        "num_docs": 20,
        "num_queries": 6,
        "k": 10,
        "shuffle": True,
        "seed": 0,
    }
    assert shown["one"]["steps_per_s"]["the author's code alone"]["median"] > 0
    ways = {(one["backend"], one["mode"]): one for one in shown["vectors"]}
    assert set(ways) == {("inproc", "serial"), ("inproc", "threads"), ("process", None)}
    assert all(one["num_envs"] == 2 and one["steps_per_s"]["median"] > 0 for one in ways.values())


@pytest.mark.slow  # starts worker processes
def test_the_figures_are_printed_as_a_table(capsys) -> None:
    assert main(SMALL) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "search-v0, random actions, median of 1 × 8 steps"
    for name in (
        "the author's code alone",
        "through make",
        "2 envs, inproc serial",
        "2 envs, inproc threads",
        "2 envs, process",
    ):
        assert any(line.startswith(name) and len(line.split()) >= 5 for line in lines)


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("by_variable", [True, False])
def test_a_checkout_is_measured_where_there_is_one(
    checkout, tmp_path, monkeypatch, capsys, by_variable
) -> None:
    if by_variable:
        monkeypatch.chdir("/")
        monkeypatch.setenv("TINKER_MXB_PATH", str(checkout))

    assert main([*SMALL, "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["environment"] == f"SearchEnv of {checkout}"
    assert [one["problem"] for one in shown["vectors"]] == [None, None, None]
    assert all(one["steps_per_s"]["median"] > 0 for one in shown["vectors"])


@pytest.mark.slow  # starts worker processes
def test_a_checkout_that_cannot_be_used_is_named_and_the_built_in_is_measured(
    checkout, capsys
) -> None:
    (checkout / "env/search_env.py").write_text("")

    assert main([*SMALL, "--json"]) == 0

    shown = capsys.readouterr()
    assert f"The tinker-mxb checkout at {checkout} has no usable SearchEnv" in shown.err
    assert "Measuring the built-in search-v0 instead." in shown.err
    assert json.loads(shown.out)["environment"] == "search-v0"


@pytest.mark.slow  # starts worker processes
def test_a_path_that_leads_nowhere_is_named_and_the_built_in_is_measured(
    monkeypatch, capsys
) -> None:
    monkeypatch.setenv("TINKER_MXB_PATH", "/no/such/folder")

    assert main([*SMALL, "--json"]) == 0

    shown = capsys.readouterr()
    assert "TINKER_MXB_PATH='/no/such/folder' is not a directory." in shown.err
    assert json.loads(shown.out)["environment"] == "search-v0"


@pytest.mark.parametrize("wrong", [["--num-envs", "0"], ["--steps", "few"], ["--seed", "-1"]])
def test_an_option_that_makes_no_sense_is_refused(wrong, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(wrong)

    assert left.value.code == 2
    assert "must be an integer >=" in capsys.readouterr().err
