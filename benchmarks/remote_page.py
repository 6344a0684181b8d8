"""Write the figures of docs/assets/remote.json into the page about speed.

    python benchmarks/remote_page.py

`benchmarks/remote.py --docs` measures first, and then does the same.
"""

from __future__ import annotations

from block import Block
from remote_tables import tables_of

BLOCK = Block("remote", tables_of)

if __name__ == "__main__":
    BLOCK.write_page()
