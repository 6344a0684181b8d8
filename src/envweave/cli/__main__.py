"""`python -m envweave.cli`: the command, where no script is installed."""

from __future__ import annotations

import sys

from envweave.cli import main

sys.exit(main())
