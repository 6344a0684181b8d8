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
    """What is searched for.

    Attributes:
        text: The words of the query.
        relevant: The indices of the documents that answer it.
        kind: Which kind of query it is; an agent is not shown it.
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

    Each document has a topic, which it shares with a few others and of whose words it uses some,
    a common word that it repeats, words of its own, and a phrase of common words. Titles consist
    of names, which the bodies of other documents mention.
    """
    rng = random.Random(seed)  # noqa: S311 - a corpus, not a secret
    words = _words(rng)
    common = [next(words) for _ in range(_COMMON_WORDS)]
    names = [next(words) for _ in range(_NAME_WORDS)]
    num_topics = -(-num_docs // _DOCUMENTS_PER_TOPIC)
    topics = [[next(words) for _ in range(_TOPIC_WORDS)] for _ in range(num_topics)]
    documents: list[Document] = []
    own: list[list[str]] = []
    phrases: list[list[str]] = []
    for i in range(num_docs):
        own.append([next(words) for _ in range(3)])
        phrases.append(rng.sample(common, 3))
        parts = [[word] for word in own[i]]
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
            asked = [common[i % len(common)]]
            relevant = set(range(i % len(common), num_docs, len(common)))
        elif kind == "rare":
            asked = [rng.choice(own[i]), *rng.sample(common, 6)]
            rng.shuffle(asked)
        elif kind == "title":
            asked = documents[i].title.split()
            rng.shuffle(asked)
        elif kind == "misspelt":
            asked = [_misspell(word, rng) for word in own[i]]
        elif kind == "phrase":
            asked = phrases[i]
        else:
            asked = rng.sample(topics[i % num_topics], 2)
            relevant = set(range(i % num_topics, num_docs, num_topics))
        return Query(" ".join(asked), frozenset(relevant), kind)

    queries = [query(KINDS[i % len(KINDS)]) for i in range(num_queries)]
    rng.shuffle(queries)
    return Corpus(tuple(documents), tuple(queries))


def _words(rng: random.Random) -> Iterator[str]:
    """Yield different words, without end."""
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
