"""The arguments that a tool takes: what each is, and how those of a call are read."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from envweave.codec import Mismatch, Spec
from envweave.errors import suggest

EMPTY: Any = inspect.Parameter.empty
"""Stands for a hint or a default that there is not."""

Kind = typing.TypeAlias = Any
