"""Modules of which a session has its own: those that keep what sessions must not share.

Code finds these in place of the real ones, when it imports them and where they are bound. What
they hold besides is the real one's. Libraries that the code uses find the real ones.
"""

from __future__ import annotations

import builtins
import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any, final

_WORD = 1 << 32
_NUMPY_ALIASES = {"ranf": "random_sample", "sample": "random_sample"}


@final
class Modules:
    """The modules of one session.

    Args:
        seed: Of `random` and numpy; `None` draws from the system.
        pause: Waits for so many seconds, or until the code is interrupted.
    """

    def __init__(self, seed: int | None, pause: Callable[[float], None]) -> None:
        self._seed = seed
        self._stand_ins: dict[str, ModuleType] = {
            "builtins": _stand_in(builtins, {"__import__": self.load, "input": _input}),
            "random": _own_random(seed),
            "time": _stand_in(time, {"sleep": _sleep_by(pause)}),
        }

    @property
    def builtins(self) -> ModuleType:
        """What code finds without importing anything."""
        return self._stand_ins["builtins"]

    def load(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - as `__import__` takes them
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Do what `__import__` does."""
        return self.own(builtins.__import__(name, globals, locals, fromlist or (), level))

    def own(self, value: Any) -> Any:
        """Return the session's own of this; itself, if there is no such thing."""
        if isinstance(value, ModuleType):
            return self._own_module(value)
        if isinstance(value, BuiltinMethodType | MethodType):
            holder = value.__self__
            if holder is time and value.__name__ == "sleep":
                return self._stand_ins["time"].sleep
            if holder is random._inst:  # noqa: SLF001 - the shared one
                return getattr(self._stand_ins["random"], value.__name__, value)
            if type(holder).__name__ == "RandomState" and holder is _shared_by_numpy():
                return getattr(self._own_module(_numpy().random), value.__name__, value)
        return value

    def _own_module(self, module: ModuleType) -> ModuleType:
        name = module.__name__
        if name in ("numpy", "numpy.random") and name not in self._stand_ins:
            numpy = _numpy()
            own = _own_numpy_random(numpy.random, self._seed)
            self._stand_ins["numpy.random"] = own
            self._stand_ins["numpy"] = _stand_in(numpy, {"random": own})
        return self._stand_ins.get(name, module)


def _stand_in(real: ModuleType, own: Mapping[str, Any]) -> ModuleType:
    """Return a module with something of its own. What code sets there, no other session sees."""
    made = ModuleType(real.__name__)
    vars(made).update(vars(real))
    vars(made).update(own)
    vars(made)["__getattr__"] = lambda name: getattr(real, name)  # what it loads later
    return made


def _own_random(seed: int | None) -> ModuleType:
    own = random.Random(seed)  # noqa: S311 - the agent's
    shared = random._inst  # noqa: SLF001 - whose methods they are
    names = [name for name, one in vars(random).items() if getattr(one, "__self__", None) is shared]
    return _stand_in(random, {"_inst": own, **{name: getattr(own, name) for name in names}})


def _own_numpy_random(shared: ModuleType, seed: int | None) -> ModuleType:
    state = shared.RandomState(_words(seed))
    own = {name: getattr(state, to) for name, to in _NUMPY_ALIASES.items()}
    for name in shared.__all__:
        if hasattr(state, name) and not isinstance(getattr(shared, name), type):
            own[name] = getattr(state, name)
    return _stand_in(shared, own)


def _words(seed: int | None) -> Any:
    """Return the seed as numpy takes it, and as a session of the sandbox gives it."""
    if seed is None or 0 <= seed < _WORD:
        return seed
    words = [abs(seed) >> shift & _WORD - 1 for shift in range(0, abs(seed).bit_length(), 32)]
    return [*words, 1] if seed < 0 else words


def _numpy() -> Any:
    import numpy as np

    return np


def _shared_by_numpy() -> Any:
    return _numpy().random.mtrand._rand  # noqa: SLF001 - the generator that all share


def _sleep_by(pause: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float, /) -> None:
        """Delay execution for a given number of seconds."""
        if not isinstance(seconds, int | float) or not seconds > 0:
            time.sleep(seconds)  # it says what is wrong, if anything is
        else:
            pause(seconds)

    return sleep


def _input(prompt: object = "", /) -> str:
    """Do what `input` does at the end of a file: nobody sits there."""
    print(prompt, end="")  # noqa: T201 - what it does
    raise EOFError("EOF when reading a line")
