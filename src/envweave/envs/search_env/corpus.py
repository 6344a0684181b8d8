"""Synthetic documents, and queries of six kinds with the documents that answer them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["frequent", "rare", "title", "misspelt", "phrase", "topic"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_COMMON_WORDS, _NAME_WORDS, _TOPIC_WORDS = 24, 30, 12
_DOCUMENTS_PER_TOPIC = 6


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a title."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Query:
    """A search query.

    Attributes:
        text: The words of the query.
        relevant: The indices of the documents that answer it.
        kind: Its kind, which the agent does not see.
    """

    text: str
    relevant: frozenset[int]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents, and queries about them."""

    documents: tuple[Document, ...]
    queries: tuple[Query, ...]


def make_corpus(num_docs: int, num_queries: int, seed: int) -> Corpus:
    """Return a corpus; the same arguments give the same corpus.

    Each document has some words of a topic that it shares with a few others, a common word that it
    repeats, unique words, and a phrase of common words. Titles consist of names, which occur in
    the bodies of other documents.
    """
    rng = random.Random(seed)  # noqa: S311 - a corpus, not a secret
    words = _words(rng)
    common = [next(words) for _ in range(_COMMON_WORDS)]
    names = [next(words) for _ in range(_NAME_WORDS)]
    num_topics = -(-num_docs // _DOCUMENTS_PER_TOPIC)
    topics = [[next(words) for _ in range(_TOPIC_WORDS)] for _ in range(num_topics)]
    documents: list[Document] = []
    unique: list[list[str]] = []
    phrases: list[list[str]] = []
    for i in range(num_docs):
        unique.append([next(words) for _ in range(3)])
        phrases.append(rng.sample(common, 3))
        parts = [[word] for word in unique[i]]
        parts += [[word] for word in rng.sample(topics[i % num_topics], 4)]
        parts += [[word] for word in rng.sample(names, 10)]
        parts += [[word] for word in common]
        parts += [[common[i % len(common)]]] * 5
        parts += [phrases[i]]
        rng.shuffle(parts)
        title = " ".join(rng.sample(names, 3))
        documents.append(Document(title, " ".join(word for part in parts for word in part)))

    def query(kind: Kind) -> Query:
        i = rng.randrange(num_docs)
        relevant = {i}
        if kind == "frequent":
            terms = [common[i % len(common)]]
            relevant = set(range(i % len(common), num_docs, len(common)))
        elif kind == "rare":
            terms = [rng.choice(unique[i]), *rng.sample(common, 6)]
            rng.shuffle(terms)
        elif kind == "title":
            terms = documents[i].title.split()
            rng.shuffle(terms)
        elif kind == "misspelt":
            terms = [_misspell(word, rng) for word in unique[i]]
        elif kind == "phrase":
            terms = phrases[i]
        else:
            terms = rng.sample(topics[i % num_topics], 2)
            relevant = set(range(i % num_topics, num_docs, num_topics))
        return Query(" ".join(terms), frozenset(relevant), kind)

    queries = [query(KINDS[i % len(KINDS)]) for i in range(num_queries)]
    rng.shuffle(queries)
    return Corpus(tuple(documents), tuple(queries))


def _words(rng: random.Random) -> Iterator[str]:
    """Yield different words, endlessly."""
    seen: set[str] = set()
    while True:
        word = "".join(rng.choices(_SYLLABLES, k=4))
        if word not in seen:
            seen.add(word)
            yield word


def _misspell(word: str, rng: random.Random) -> str:
    """Return the word with one letter left out, and another one doubled."""
    dropped = rng.randrange(1, len(word) - 1)
    word = word[:dropped] + word[dropped + 1 :]
    doubled = rng.randrange(len(word))
    return word[: doubled + 1] + word[doubled:]
