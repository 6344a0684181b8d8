"""Seeds the global random generators; numpy's also if numpy is imported later."""

from __future__ import annotations

import random
import sys
from _random import Random
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

from envweave.sandbox.protocol.encoding import OWN

__builtins__ = OWN

_NUMPY = "numpy.random"
_WORD = 1 << 32
_modules = sys.modules
_generator: Any = random._inst  # noqa: SLF001 - the one that `random.seed` seeds
_seed_from_system = Random.seed
_get_state = Random.getstate
_set_state = Random.setstate
_finders = sys.meta_path


def reseed(seed: int | None) -> None:
    """Seed `random` and numpy's global generator; with `None`, from the system.

    The state is the one that `random.seed(seed)` and `numpy.random.seed(seed)` set.
    """
    if seed is None:  # as `random.seed` does it, which would touch more memory
        _seed_from_system(_generator)
        _generator.gauss_next = None
    else:
        random.seed(seed)
    if _AfterImport.is_used:
        _finders[:] = [finder for finder in _finders if type(finder) is not _AfterImport]
    loaded = _modules.get(_NUMPY)
    if loaded is not None:
        _seed_numpy(loaded, seed)
    elif seed is not None:  # without a seed, it seeds itself from the system
        _AfterImport.is_used = True
        _finders.insert(0, _AfterImport(seed))


def random_state() -> Any:
    """Return the state of `random`, which a fork loses: the child seeds it from the system.

    numpy has no such hook.
    """
    return _get_state(_generator), _generator.gauss_next


def set_random_state(state: Any) -> None:
    """Continue with a state that `random_state` returned before a fork."""
    numbers, _generator.gauss_next = state
    _set_state(_generator, numbers)


def _seed_numpy(numpy_random: ModuleType, seed: int | None) -> None:
    numpy_random.seed(_words(seed))


def _words(seed: int | None) -> Any:
    """Return the seed in the form that numpy accepts: one number of 32 bits, or several."""
    if seed is None or 0 <= seed < _WORD:
        return seed
    words = [abs(seed) >> shift & _WORD - 1 for shift in range(0, abs(seed).bit_length(), 32)]
    return [*words, 1] if seed < 0 else words


@final
class _AfterImport:
    """Seeds numpy's generator as soon as its module has been executed."""

    is_used = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module by the other finders, and wrap its loader."""
        if name != _NUMPY:
            return None
        if self in _finders:
            _finders.remove(self)
        for finder in list(_finders):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._wrap(spec.loader)
                return spec
        return None

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_seed(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            _seed_numpy(module, self._seed)

        loader.exec_module = execute_and_seed
