"""What became of a run of attacks, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from attacks import Verdict

from envweave.sandbox import Tier


@dataclass(frozen=True)
class Report:
    """The verdicts on one tier."""

    tier: Tier
    verdicts: list[Verdict]

    @property
    def held(self) -> int:
        """How many attacks broke no promise."""
        return sum(verdict.held for verdict in self.verdicts)

    @property
    def surprises(self) -> int:
        """How many broke one without being known to."""
        return sum(not (verdict.held or verdict.known) for verdict in self.verdicts)

    def as_json(self) -> str:
        """Return it for programs."""
        return json.dumps(
            {
                "tier": self.tier.name,
                "missing": list(self.tier.missing),
                "user": os.geteuid(),
                "kernel": platform.release(),
                "played": len(self.verdicts),
                "held": self.held,
                "attacks": [
                    {
                        "id": verdict.attack.id,
                        "family": verdict.attack.family,
                        "held": verdict.held,
                        "broken": verdict.broken,
                        "known": verdict.known,
                        "seconds": round(verdict.seconds, 3),
                        "said": verdict.said,
                    }
                    for verdict in self.verdicts
                ],
            },
            indent=1,
        )

    def as_table(self) -> str:
        """Return it for people: a row a family, then what got through."""
        families = sorted({verdict.attack.family for verdict in self.verdicts})
        rows = [("family", "attacks", "held", "got through", "seconds")]
        rows += [
            _row(name, [one for one in self.verdicts if one.attack.family == name])
            for name in families
        ]
        rows.append(_row("all", self.verdicts))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [f"Tier {self.tier.name}, user {os.geteuid()}, kernel {platform.release()}", ""]
        for row in rows:
            cells = [
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        for verdict in self.verdicts:
            for promise, how in verdict.broken.items():
                known = f"\n  known: {verdict.known}" if verdict.known else ""
                lines.append(f"\n{verdict.attack.id} broke {promise}: {how}{known}")
        return "\n".join(lines)


def _row(name: str, verdicts: Iterable[Verdict]) -> tuple[str, str, str, str, str]:
    verdicts = list(verdicts)
    held = sum(one.held for one in verdicts)
    seconds = sum(one.seconds for one in verdicts)
    return name, str(len(verdicts)), str(held), str(len(verdicts) - held), f"{seconds:.1f}"
