"""Tic-tac-toe: a game for two agents that take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

import envweave as ew

MARKS: dict[str, Literal[-1, 1]] = {"x": 1, "o": -1}

_ROWS = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
_COLUMNS = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
_DIAGONALS = [(0, 4, 8), (2, 4, 6)]
_LINES = np.array(_ROWS + _COLUMNS + _DIAGONALS)


@dataclass
class TicTacToeAction(ew.Action):
    """Put a mark into a cell; cells are counted row by row from the top left."""

    cell: Annotated[int, ew.Bounds(0, 8)]


@dataclass
class TicTacToeObservation(ew.Observation):
    """What a player sees. Its action mask allows the free cells on its turn, else none.

    Attributes:
        board: 1 for "x", −1 for "o", 0 for a free cell.
        mark: The player's own: `board * mark` shows every player its own marks as 1.
    """

    board: Annotated[np.ndarray[Any, Any], ew.Bounds(-1, 1, shape=(3, 3), dtype="int8")]
    mark: Literal[-1, 1]


class TicTacToeEnv(ew.MultiAgentEnvironment):
    """Three in a row wins. "x" begins; the winner earns 1, the loser −1, a draw 0.

    A player that chooses an occupied cell loses at once, and the `EpisodeEnd` blames the agent.
    The last observations have the metrics `won` and `illegal`.
    """

    copyable = True
    possible_agents = ("x", "o")

    def __init__(self) -> None:
        self._board: NDArray[np.int8] = np.zeros(9, np.int8)
        self._to_move: str | None = None

    def to_act(self) -> list[str]:
        """Return the player to move."""
        return [] if self._to_move is None else [self._to_move]

    def reset(self, *, seed: int | None = None) -> dict[str, TicTacToeObservation]:  # noqa: ARG002
        """Clear the board, whatever the seed: nothing here is random."""
        self._board = np.zeros(9, np.int8)
        self._to_move = "x"
        return self._observe()

    def step(self, actions: dict[str, TicTacToeAction]) -> dict[str, TicTacToeObservation]:
        """Let the player to move take a cell."""
        ((player, action),) = actions.items()
        cell = action.cell
        opponent = "o" if player == "x" else "x"
        if self._board[cell]:
            cause = f"{player!r} chose cell {cell}, which is occupied"
            self.emit(ew.EpisodeEnd("terminated", blame="agent", cause=cause))
            return self._finish(winner=opponent, offender=player)
        self._board[cell] = MARKS[player]
        if self._has_line(player):
            return self._finish(winner=player)
        if self._board.all():
            return self._finish(winner=None)
        self._to_move = opponent
        return self._observe()

    def _has_line(self, player: str) -> bool:
        return bool((self._board[_LINES] == MARKS[player]).all(axis=1).any())

    def _finish(
        self, *, winner: str | None, offender: str | None = None
    ) -> dict[str, TicTacToeObservation]:
        self._to_move = None
        seen = self._observe()
        for player, observation in seen.items():
            observation.done = True
            if winner is not None:
                observation.reward = 1.0 if player == winner else -1.0
            observation.metadata["metrics"] = {
                "won": float(player == winner),
                "illegal": float(player == offender),
            }
        return seen

    def _observe(self) -> dict[str, TicTacToeObservation]:
        seen = {}
        for player, mark in MARKS.items():
            mask = (self._board == 0) & (player == self._to_move)
            seen[player] = TicTacToeObservation(
                self._board.reshape(3, 3).copy(),
                mark,
                reward=0.0,
                metadata={"action_mask": mask.astype(np.int8)},
            )
        return seen
