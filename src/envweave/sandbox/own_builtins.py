"""Builtins that code in the same process cannot take away.

Code may put its own functions in the place of `len` and `isinstance`, for every module at once.
The modules that run beside it say `__builtins__ = OWN` before they define anything: a function
looks its builtins up where its module had them when it was defined.
"""

from __future__ import annotations

import builtins
from typing import Any

OWN: Any = dict(vars(builtins))
