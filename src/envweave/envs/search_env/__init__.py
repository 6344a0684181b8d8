"""The search environment: a bandit that chooses how to search, offline and in numpy."""

from envweave.envs.search_env.corpus import Corpus, Document, Query, make_corpus
from envweave.envs.search_env.environment import SearchEnvironment, SearchObservation
from envweave.envs.search_env.retrieval import CONFIGS, FEATURES, RetrievalConfig, Retriever

__all__ = [
    "CONFIGS",
    "FEATURES",
    "Corpus",
    "Document",
    "Query",
    "RetrievalConfig",
    "Retriever",
    "SearchEnvironment",
    "SearchObservation",
    "make_corpus",
]
