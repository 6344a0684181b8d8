"""The attacks of `tests/sandbox/attacks`, as objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).resolve().parents[1] / "sandbox/attacks"

PROMISES = (
    "not_escaped",
    "no_leak",
    "host_ok",
    "sibling_ok",
    "bounded_time",
    "bounded_output",
    "session_ok",
    "status_not_ok",
    "error_reported",
    "no_connect",
    "no_procs_after_close",
    "fresh_session_clean",
    "second_step_real",
    "answer_not_accepted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Code that runs in a session, and what must hold of the world afterwards.

    Attributes:
        family: What it abuses, as tables group it.
        source: Where the technique is publicly known from.
        profile: `fork` where the session may start processes.
        timeout_s: How long each step may run.
        pause_s: How long no run is open between two steps.
        must_hold: Some of `PROMISES`.
        steps: Pieces of code, with placeholders, for one fresh session.
        known: By tier, why it gets through there, and why that is borne. The docs say it too.
    """

    id: str
    family: str
    source: str
    profile: Literal["python", "fork"]
    timeout_s: float
    must_hold: tuple[str, ...]
    steps: tuple[str, ...]
    pause_s: float = 0.0
    note: str = ""
    known: Mapping[str, str] = field(default_factory=dict)


def load(folder: Path = FOLDER) -> list[Attack]:
    """Read every attack, by family and id.

    Raises:
        ValueError: A file does not say what an attack must say.
    """
    attacks = [one for path in sorted(folder.glob("*.json")) for one in _read(path)]
    seen: set[str] = set()
    for one in attacks:
        if one.id in seen:
            raise ValueError(f"There are two attacks called {one.id!r}.")
        seen.add(one.id)
    return sorted(attacks, key=lambda one: (one.family, one.id))


def pick(attacks: Iterable[Attack], wanted: Iterable[str]) -> list[Attack]:
    """Return the attacks whose id or family is wanted; all of them if nothing is asked for.

    Raises:
        ValueError: Nothing is called so.
    """
    attacks, wanted = list(attacks), list(wanted)
    for name in wanted:
        if not any(name in (one.id, one.family) for one in attacks):
            families = ", ".join(sorted({one.family for one in attacks}))
            raise ValueError(f"No attack and no family is called {name!r}. Families: {families}.")
    return [one for one in attacks if not wanted or {one.id, one.family} & set(wanted)]


def _read(path: Path) -> list[Attack]:
    file = json.loads(path.read_text(encoding="utf-8"))
    return [_attack(file["family"], entry, path.name) for entry in file["attacks"]]


def _attack(family: str, entry: Mapping[str, Any], where: str) -> Attack:
    unknown = set(entry["must_hold"]) - set(PROMISES)
    if unknown or entry["profile"] not in ("python", "fork") or not entry["steps"]:
        wrong = f"unknown promises {sorted(unknown)}" if unknown else "no such profile, or no step"
        raise ValueError(f"{where}: {entry['id']!r} cannot be judged: {wrong}.")
    steps = tuple("\n".join(lines) for lines in entry["steps"])
    fields = {**entry, "steps": steps, "must_hold": tuple(entry["must_hold"])}
    return Attack(family=family, **fields)
