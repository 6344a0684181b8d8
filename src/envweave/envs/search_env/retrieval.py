"""Six retrieval configurations over deterministic hash embeddings."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from envweave.envs.search_env.corpus import Document


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """How documents and queries become vectors, and how they are compared.

    Attributes:
        name: Its name.
        text: The part of a document that is indexed.
        tokens: The kind of tokens.
        dim: The number of columns that tokens are hashed into.
        idf: Whether columns are weighted by inverse document frequency.
        feedback: The number of best documents that are added to the query for a second search.
    """

    name: str
    text: Literal["title", "body"]
    tokens: Literal["words", "bigrams", "trigrams"]
    dim: int
    idf: bool = True
    feedback: int = 0


CONFIGS = (
    RetrievalConfig("word counts", "body", "words", 512, idf=False),
    RetrievalConfig("tf-idf", "body", "words", 1024),
    RetrievalConfig("titles", "title", "words", 256),
    RetrievalConfig("character trigrams", "body", "trigrams", 1024, idf=False),
    RetrievalConfig("word bigrams", "body", "bigrams", 2048),
    RetrievalConfig("tf-idf with feedback", "body", "words", 512, feedback=3),
)
"""The configurations, by action."""


@final
class Retriever:
    """An index of documents with one configuration."""

    def __init__(self, config: RetrievalConfig, documents: Sequence[Document]) -> None:
        self.config = config
        texts = [getattr(document, config.text) for document in documents]
        counts = np.stack([self._count(text) for text in texts])
        self._weights = np.ones(config.dim, np.float32)
        if config.idf:
            document_counts = np.count_nonzero(counts, axis=0)
            self._weights = np.log((len(texts) + 1) / (document_counts + 1)).astype(np.float32)
        weighted = counts * self._weights
        lengths = np.linalg.norm(weighted, axis=1, keepdims=True)
        self._matrix: NDArray[np.float32] = weighted / np.maximum(lengths, 1e-6)

    def search(self, text: str, k: int) -> NDArray[np.intp]:
        """Return the indices of the `k` best documents, best first."""
        query = self._count(text) * self._weights
        scores = self._matrix @ query
        if self.config.feedback:
            best = np.argsort(-scores, kind="stable")[: self.config.feedback]
            query = query / max(float(np.linalg.norm(query)), 1e-6) + self._matrix[best].mean(
                axis=0
            )
            scores = self._matrix @ query
        # Rounded, so that equal documents stay in order whatever the order of summation.
        return np.argsort(-np.round(scores, 4), kind="stable")[:k]

    def _count(self, text: str) -> NDArray[np.float32]:
        """Hash the tokens of a text into columns, with a sign each, and sum them up."""
        hashes = np.array(
            [zlib.crc32(token.encode()) for token in _tokens(text, self.config.tokens)], np.int64
        )
        signs = np.where(hashes >> 16 & 1, 1.0, -1.0)
        columns = (hashes & 0xFFFF) % self.config.dim
        return np.bincount(columns, signs, self.config.dim).astype(np.float32)


def _tokens(text: str, kind: str) -> list[str]:
    words = text.split()
    if kind == "words":
        return words
    if kind == "bigrams":
        return [f"{first} {second}" for first, second in pairwise(words)]
    return [f" {word} "[i : i + 3] for word in words for i in range(len(word))]


FEATURES = ("words", "known", "mean share", "lowest share", "in titles", "known pairs")
"""The names of the features of a query."""


@final
class QueryFeatures:
    """Computes features of a query in relation to the documents, without searching."""

    def __init__(self, documents: Sequence[Document]) -> None:
        bodies = [document.body.split() for document in documents]
        document_counts = Counter(word for body in bodies for word in set(body))
        self._share = {word: count / len(documents) for word, count in document_counts.items()}
        self._titles = {word for document in documents for word in document.title.split()}
        self._pairs = {pair for body in bodies for pair in pairwise(body)}

    def of(self, text: str) -> NDArray[np.float32]:
        """Return a value from 0 to 1 for each of `FEATURES`.

        They are a tenth of the number of words; the share of words that occur in documents; the
        mean and the lowest document frequency of the words; the share of words that occur in
        titles; and the share of adjacent pairs that are adjacent in a document.
        """
        words = text.split()
        shares = [self._share.get(word, 0.0) for word in words]
        pairs = list(pairwise(words))
        return np.array(
            [
                min(len(words) / 10, 1.0),
                sum(share > 0 for share in shares) / max(len(words), 1),
                sum(shares) / max(len(words), 1),
                min(shares, default=0.0),
                sum(word in self._titles for word in words) / max(len(words), 1),
                sum(pair in self._pairs for pair in pairs) / max(len(pairs), 1),
            ],
            np.float32,
        )
