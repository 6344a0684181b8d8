"""Memory an environment, of the one who is named: run by vector.py, in a process of its own."""

from __future__ import annotations

import json
import sys

from contenders import ENTRANTS, NotAvailableError, Opened, end_leftovers, open_vector
from rows import WEIGHED_SIZE

from envs import KINDS
from envweave.bench.memory import usable_cores, weigh
from envweave.errors import format_error


def main(name: str) -> None:
    weight, problem = None, None

    def open_one(num_envs: int) -> Opened:
        tried = ENTRANTS[name].settings(num_envs)
        # A worker a core, as everyone would have it.
        usual = max(tried, key=lambda one: one.get("num_workers", 0) == usable_cores())
        opened = open_vector(name, KINDS["own"], num_envs, reads=False, settings=usual)
        opened.step()
        return opened

    try:
        weight = weigh(open_one, WEIGHED_SIZE)
    except NotAvailableError as error:
        problem = f"not available: {error}"
    except Exception as error:  # noqa: BLE001 - told to who asked
        problem = f"failed: {format_error(error)}"
    finally:
        end_leftovers()
    print(f"\n{json.dumps({'bytes_per_env': weight, 'problem': problem})}")


if __name__ == "__main__":
    main(sys.argv[1])
