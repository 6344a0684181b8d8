"""Serves an environment with whichever version of the MCP SDK its interpreter has, until killed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

from envweave import serve
from envweave.examples import CounterEnv

if __name__ == "__main__":
    serve(CounterEnv, host="127.0.0.1", port=0)
