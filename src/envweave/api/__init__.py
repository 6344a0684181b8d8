"""The caller's API: make an environment by its ID, and use it."""

from envweave.api.env import AsyncEnv, Env
from envweave.api.make import make, make_async, make_vector
from envweave.api.registration import list_envs, register, spec

__all__ = [
    "AsyncEnv",
    "Env",
    "list_envs",
    "make",
    "make_async",
    "make_vector",
    "register",
    "spec",
]
