"""Environments that show, and take, all kinds of values; worker processes import them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import envweave as ew


@dataclass
class Inner:
    at: int
    cells: np.ndarray


@dataclass
class Seen(ew.Observation):
    inner: Inner
    text: str = ""
    words: list[str] = field(default_factory=list)


@dataclass
class SeenMore(Seen):
    more: int = 7


@dataclass
class Move(ew.Action):
    by: int
    how: Literal["slow", "fast"] = "slow"


SHOW: dict[str, Any] = {
    "float": lambda k: k / 3,
    "int": lambda k: k,
    "bool": lambda k: k % 2 == 0,
    "text": lambda k: "é" * k,
    "none": lambda k: None,
    "numpy scalar": lambda k: np.float32(k),
    "int8": lambda k: np.full(3, k, np.int8),
    "bool array": lambda k: np.array([k % 2 == 0, True]),
    "empty": lambda k: np.zeros((0, 3)),
    "nothing-dimensional": lambda k: np.array(k / 3),
    "image": lambda k: np.full((64, 64, 3), k, np.uint8),
    "read-only": lambda k: read_only(np.full(3, k)),
    "not contiguous": lambda k: np.arange(12).reshape(3, 4).T + k,
    "objects": lambda k: np.array([k, "x", None], object),
    "text array": lambda k: np.array(["a", "b" * (k % 3 + 1)]),
    "times": lambda k: np.array([k, 2], "timedelta64[s]"),
    "dict": lambda k: {"a": np.full(2, k), "b": {"c": k / 3, "d": "t" * k}},
    "list": lambda k: [k, "x"],
    "tuple": lambda k: (k, np.full(2, k)),
    "record": lambda k: Seen(Inner(k, np.full(2, k)), "t" * k, ["w"] * k),
    "subclass": lambda k: (Seen if k % 2 else SeenMore)(Inner(k, np.full(2, k))),
    "bytes": lambda k: bytes([k]),
}


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class Shows(ew.Environment):
    """Shows one kind of value, an info at each third step, a log at each fourth."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None) -> Any:
        self.at = (seed or 0) % 5
        return self._show(), {"began": self.at}

    def step(self, action: int) -> Any:
        self.at += action
        if self.at % 4 == 0:
            self.emit(ew.LogEvent(f"at {self.at}"))
        info = {"at": self.at, "cells": np.full(2, self.at)} if self.at % 3 == 0 else {}
        return self._show(), float(self.at), self.at > 9, False, info

    def _show(self) -> Any:
        return SHOW[self.kind](self.at)


class Takes(ew.Environment):
    def reset(self, *, seed: int | None = None, task: Any = None, options: Any = None) -> Any:
        self.kept = repr((task, options))
        return np.zeros(1), {"kept": self.kept}


class TakesNumber(Takes):
    def step(self, action: float) -> Any:
        return np.array([action]), action, False, False, {"type": type(action).__name__}


class TakesText(Takes):
    def step(self, action: str) -> Any:
        return np.array([len(action)], float), 1.0, False, False, {"was": action}


class TakesMove(Takes):
    def step(self, action: Move) -> Any:
        return np.array([action.by], float), 1.0, False, False, {"was": action}


class TakesAny(Takes):
    def step(self, action: Any) -> Any:
        return np.zeros(1), 1.0, False, False, {"was": action}
