"""Write the figures of docs/assets/sandbox.json into the page about speed.

    python benchmarks/sandbox_page.py

`benchmarks/sandbox.py --docs` measures first, and then does the same.
"""

from __future__ import annotations

from typing import Any

import remote_tables
from block import Block
from tables import Table


def tables_of(figures: dict[str, Any]) -> list[Table]:
    """Return the ratios, and what they are made of."""
    return remote_tables.tables_of(figures, "envweave's sandbox against its peers")


BLOCK = Block("sandbox", tables_of)

if __name__ == "__main__":
    BLOCK.write_page()
