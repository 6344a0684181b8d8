"""Small environments to learn from, and programs that train on them.

Nothing is imported until it is used, so a program's extras are needed only to run it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envweave.envs.gsm8k_env import GSM8KAction as GSM8KAction
    from envweave.envs.gsm8k_env import GSM8KChoiceEnv as GSM8KChoiceEnv
    from envweave.envs.gsm8k_env import GSM8KEnv as GSM8KEnv
    from envweave.envs.gsm8k_env import GSM8KObservation as GSM8KObservation
    from envweave.examples.codefix import CodeFixAction as CodeFixAction
    from envweave.examples.codefix import CodeFixEnv as CodeFixEnv
    from envweave.examples.codefix import CodeFixObservation as CodeFixObservation
    from envweave.examples.counter import CounterAction as CounterAction
    from envweave.examples.counter import CounterEnv as CounterEnv
    from envweave.examples.counter import CounterObservation as CounterObservation
    from envweave.examples.harvest import HarvestAction as HarvestAction
    from envweave.examples.harvest import HarvestEnv as HarvestEnv
    from envweave.examples.harvest import HarvestObservation as HarvestObservation
    from envweave.examples.lineworld import LineWorldAction as LineWorldAction
    from envweave.examples.lineworld import LineWorldEnv as LineWorldEnv
    from envweave.examples.lineworld import LineWorldObservation as LineWorldObservation
    from envweave.examples.tictactoe import TicTacToeAction as TicTacToeAction
    from envweave.examples.tictactoe import TicTacToeEnv as TicTacToeEnv
    from envweave.examples.tictactoe import TicTacToeObservation as TicTacToeObservation

_MODULES = {
    ".envs.gsm8k_env": ["GSM8KAction", "GSM8KChoiceEnv", "GSM8KEnv", "GSM8KObservation"],
    "codefix": ["CodeFixAction", "CodeFixEnv", "CodeFixObservation"],
    "counter": ["CounterAction", "CounterEnv", "CounterObservation"],
    "harvest": ["HarvestAction", "HarvestEnv", "HarvestObservation"],
    "lineworld": ["LineWorldAction", "LineWorldEnv", "LineWorldObservation"],
    "tictactoe": ["TicTacToeAction", "TicTacToeEnv", "TicTacToeObservation"],
}
_MODULE_OF = {name: home for home, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'envweave.examples' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", "envweave.examples"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
