"""`python -m envweave.cli`: the command without its script."""

from __future__ import annotations

import sys

from envweave.cli import main

sys.exit(main())
