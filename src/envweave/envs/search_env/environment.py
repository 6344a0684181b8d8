"""The search environment: choose a retrieval configuration for each query."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Annotated

import numpy as np

import envweave as ew
from envweave.envs.search_env.corpus import Corpus, Query, make_corpus
from envweave.envs.search_env.retrieval import CONFIGS, FEATURES, QueryFeatures, Retriever


@dataclass
class SearchObservation(ew.Observation):
    """The next query.

    Attributes:
        query: Its words; empty after the last query of an episode.
        features: Its features, in the order of `FEATURES`.
    """

    query: str
    features: Annotated[np.ndarray, ew.Bounds(0, 1, shape=(len(FEATURES),), dtype="float32")]


class SearchEnvironment(ew.Environment):
    """Choose one of six retrieval configurations for each query; the reward is its search quality.

    The reward is the mean of the recall of relevant documents among the first `k` and the
    reciprocal rank of the first of them. Which configuration is best depends on the query. An
    episode visits all queries once, and no step affects a later one: a contextual bandit. Documents
    and queries are generated from `seed`; nothing is downloaded.

    Attributes:
        num_docs: The number of documents.
        num_queries: The number of queries, which is the number of steps of an episode.
        k: The number of documents that a search returns.
        shuffle: Whether the seed of an episode shuffles its queries.
        seed: The seed of the documents and queries.
    """

    def __init__(
        self,
        num_docs: int = 200,
        num_queries: int = 256,
        k: int = 10,
        *,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        given = {"num_docs": num_docs, "num_queries": num_queries, "k": k, "seed": seed}
        for name, value in given.items():
            low = 0 if name == "seed" else 1
            if not isinstance(value, int) or value < low:
                raise ew.errors.OptionError(f"{name} must be an integer >= {low}, got {value!r}.")
        self.k = k
        self.shuffle = shuffle
        self._index = _make_index(num_docs, num_queries, seed)
        self._queries: list[Query] = []
        self._next = 0

    def reset(self, *, seed: int | None = None) -> SearchObservation:
        """Return the first query."""
        self._queries = list(self._index.corpus.queries)
        if self.shuffle:
            random.Random(seed).shuffle(self._queries)  # noqa: S311 - an order, not a secret
        self._next = 0
        return self._observe()

    def step(self, action: Annotated[int, ew.Bounds(0, len(CONFIGS) - 1)]) -> SearchObservation:
        """Search with the chosen configuration, and return the next query."""
        query = self._queries[self._next]
        found = self._index.retrievers[action].search(query.text, self.k)
        ranks = [rank for rank, i in enumerate(found.tolist(), 1) if i in query.relevant]
        recall = len(ranks) / min(len(query.relevant), self.k)
        reciprocal_rank = 1 / ranks[0] if ranks else 0.0
        self._next += 1
        observation = self._observe()
        observation.reward = (recall + reciprocal_rank) / 2
        observation.done = self._next == len(self._queries)
        observation.metadata["metrics"] = {"recall": recall, "reciprocal_rank": reciprocal_rank}
        return observation

    def snapshot(self) -> tuple[list[Query], int]:
        """Return the order of the queries and the next one, without the documents."""
        return list(self._queries), self._next

    def restore(self, snapshot: tuple[list[Query], int]) -> None:
        """Continue with the queries of a snapshot, which must be of the same documents."""
        queries, self._next = snapshot
        self._queries = list(queries)

    def _observe(self) -> SearchObservation:
        text = self._queries[self._next].text if self._next < len(self._queries) else ""
        return SearchObservation(text, self._index.features.of(text))


@dataclass(frozen=True, slots=True)
class _Index:
    corpus: Corpus
    retrievers: tuple[Retriever, ...]
    features: QueryFeatures


@functools.lru_cache(maxsize=4)  # read-only, shared by the environments of a process
def _make_index(num_docs: int, num_queries: int, seed: int) -> _Index:
    corpus = make_corpus(num_docs, num_queries, seed)
    retrievers = tuple(Retriever(config, corpus.documents) for config in CONFIGS)
    return _Index(corpus, retrievers, QueryFeatures(corpus.documents))
