"""Write the figures of docs/assets/coding.json into the page about speed.

    python benchmarks/coding_page.py

`benchmarks/coding.py --docs` measures first, and then does the same.
"""

from __future__ import annotations

from block import Block
from coding_tables import tables_of

BLOCK = Block("coding", tables_of)

if __name__ == "__main__":
    BLOCK.write_page()
