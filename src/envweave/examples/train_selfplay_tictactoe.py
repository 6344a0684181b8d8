"""Train two agents on tic-tac-toe by self-play.

`python -m envweave.examples.train_selfplay_tictactoe` runs it. Each agent has a table of action
values, and learns from its own moves only. They are evaluated against a perfect player (minimax)
and a random one, on both seats. To check that learning follows the reward, flip its sign
(`--reward-sign -1`): they then learn to lose.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import envweave as ew
from envweave.examples.training import RunLog, replace_file
from envweave.examples.training.program import (
    RECENT,
    ShowProgress,
    TrainingConfig,
    TrainingInterrupted,
    fraction,
    positive_float,
    positive_int,
    run_program,
    training_parser,
)

__all__ = ["SelfPlayConfig", "main", "train"]

ENV_ID = "tictactoe-v0"
CHECKPOINT = "checkpoint.json"
SEATS = ("x", "o")
OPPONENTS = ("perfect", "random")

Board: TypeAlias = tuple[int, ...]
"""Nine cells as the player to move sees them: 1 its own, -1 the other's, 0 free."""

Player: TypeAlias = Callable[[Board], int]
"""Returns the cell to take."""

_ROWS = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
_COLUMNS = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
_LINES = [*_ROWS, *_COLUMNS, (0, 4, 8), (2, 4, 6)]


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig(TrainingConfig):
    """How to train on tic-tac-toe.

    Attributes:
        learning_rate: How far a value moves towards what was earned.
        exploration: The share of random moves at the start; it falls to 0.02.
        reward_sign: −1 flips the reward, to check that learning follows it.
        evaluation_episodes: How many games evaluate the agents on each seat.
        checkpoint_every: After how many updates the run is saved and evaluated.
    """

    num_envs: int = 64
    episodes: int = 20_000
    learning_rate: float = 0.3
    exploration: float = 0.4
    reward_sign: int = 1
    evaluation_episodes: int = 100
    checkpoint_every: int = 25


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    parser, add = training_parser(
        prog or "python -m envweave.examples.train_selfplay_tictactoe",
        "Train two agents on tic-tac-toe by self-play, and show the curve.",
        SelfPlayConfig(),
        ENV_ID,
        can_resume=True,
    )
    add("--learning-rate", type=positive_float, metavar="X", help="step size of the values")
    add("--exploration", type=fraction, metavar="X", help="share of random moves at the start")
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the reward: a sanity check, the agents must then lose")  # fmt: skip
    add("--evaluation-episodes", type=positive_int, metavar="N",
        help="games against each opponent on each seat")  # fmt: skip
    add("--checkpoint-every", type=positive_int, metavar="N",
        help="updates between checkpoints, each with a short evaluation")  # fmt: skip
    return run_program(parser, argv, SelfPlayConfig, train)


def train(config: SelfPlayConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate, write the log, and return the run's directory.

    Args:
        config: The settings.
        show: Called after every batch of games.

    Raises:
        EnvWeaveError: The backend or the run directory is not available.
        TrainingInterrupted: Ctrl-C was pressed; the log and the last checkpoint are kept.
    """
    run_dir = config.open_run_dir("selfplay-tictactoe")
    checkpoint = run_dir / CHECKPOINT
    saved = json.loads(checkpoint.read_text()) if config.resume and checkpoint.exists() else None
    with (
        config.make_vector(ENV_ID, record=run_dir if config.record else None) as venv,
        RunLog(
            run_dir,
            config.logged("Tic-tac-toe by self-play"),
            keep_lines=0 if saved is None else saved["log_lines"],
        ) as log,
    ):
        run = _SelfPlay(config, venv, log, checkpoint, saved)
        try:
            if saved is None:
                run.evaluate("random")
            run.learn(show)
            run.evaluate("trained")
        except KeyboardInterrupt:
            raise TrainingInterrupted(run_dir, run.finished, can_resume=True) from None
    return run_dir


@functools.cache
def turned(board: Board) -> tuple[Board, tuple[int, ...]]:
    """Return the same board turned and mirrored into its standard form.

    Also returns which cell of the form each cell of the board is.
    """
    forms = []
    cells = np.arange(9).reshape(3, 3)
    for grid in (cells, cells.T):
        for turns in range(4):
            source = np.rot90(grid, turns).ravel().tolist()
            form = tuple(board[cell] for cell in source)
            forms.append((form, tuple(source.index(cell) for cell in range(9))))
    return min(forms)


@final
class ActionValues:
    """An agent: the value of each cell, for each board that it has seen in any position."""

    def __init__(self, values: dict[Board, NDArray[np.float64]] | None = None) -> None:
        self._values = {} if values is None else values

    def value(self, board: Board) -> float:
        """Return the value of the best cell."""
        return float(self._of(turned(board)[0]).max())

    def best(self, board: Board) -> int:
        """Return the best cell."""
        form, places = turned(board)
        return places.index(int(self._of(form).argmax()))

    def learn(self, board: Board, cell: int, target: float, step: float) -> float:
        """Move a value towards a target, and return the error before."""
        form, places = turned(board)
        values = self._of(form)
        error = target - float(values[places[cell]])
        values[places[cell]] += step * error
        return error

    def _of(self, form: Board) -> NDArray[np.float64]:
        if form not in self._values:
            self._values[form] = np.where(np.array(form) == 0, 0.0, -np.inf)
        return self._values[form]

    def to_json(self) -> dict[str, list[float]]:
        """Return the table as plain data."""
        return {
            ",".join(map(str, board)): np.nan_to_num(values, neginf=0.0).tolist()
            for board, values in self._values.items()
        }

    @classmethod
    def from_json(cls, saved: dict[str, list[float]]) -> ActionValues:
        """Return an agent from plain data."""
        table = {}
        for key, values in saved.items():
            board = tuple(map(int, key.split(",")))
            table[board] = np.where(np.array(board) == 0, np.array(values), -np.inf)
        return cls(table)


@functools.cache
def minimax(board: Board) -> tuple[int, tuple[int, ...]]:
    """Return the value of a board for the player to move, and all its best cells."""
    if any(all(board[cell] == -1 for cell in line) for line in _LINES):
        return -1, ()
    free = [cell for cell in range(9) if board[cell] == 0]
    if not free:
        return 0, ()
    values = {}
    for cell in free:
        after = list(board)
        after[cell] = 1
        values[cell] = -minimax(tuple(-one for one in after))[0]
    best = max(values.values())
    return best, tuple(cell for cell, value in values.items() if value == best)


@final
class _SelfPlay:
    """A training run: batches of games, one of each environment, and updates after each batch."""

    def __init__(
        self,
        config: SelfPlayConfig,
        venv: ew.VectorEnv,
        log: RunLog,
        checkpoint: Path,
        saved: dict[str, Any] | None,
    ) -> None:
        self._config, self._venv, self._log, self._checkpoint = config, venv, log, checkpoint
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self.agents = {seat: ActionValues() for seat in SEATS}
        self.finished = self._updates = 0
        if saved is not None:
            self.agents = {seat: ActionValues.from_json(saved["agents"][seat]) for seat in SEATS}
            self.finished, self._updates = saved["episodes"], saved["updates"]

    def learn(self, show: ShowProgress | None) -> None:
        """Play and learn until the last game."""
        while self.finished < self._config.episodes:
            self._play_batch()
            self._updates += 1
            if self._updates % self._config.checkpoint_every == 0:
                self._check()
            if show is not None and self._recent:
                earned, held = np.mean(self._recent, axis=0)
                show(self.finished, float(earned), float(held))

    def evaluate(self, policy: str) -> None:
        """Evaluate against both opponents, and log the result.

        Success is not to lose against the perfect player, which cannot be beaten.
        """
        rng = np.random.default_rng(1)
        random = self._random(rng)
        players: dict[str, Player] = dict.fromkeys(SEATS, random)
        if policy == "trained":
            players = {seat: self.agents[seat].best for seat in SEATS}
        found = self._against_opponents(players, self._config.evaluation_episodes)
        returns = [found[opponent]["won"] - found[opponent]["lost"] for opponent in OPPONENTS]
        self._log.write(
            "evaluation",
            policy=policy,
            episodes=2 * len(SEATS) * self._config.evaluation_episodes,
            success=1.0 - found["perfect"]["lost"],
            **{"return": float(np.mean(returns)), "against": found},
        )

    def _play_batch(self) -> None:
        config = self._config
        # Drawn from the update's number, so that a resumed run plays the same games.
        rng = np.random.default_rng([config.seed, self._updates])
        share = self.finished / config.episodes
        chance = max(0.02, config.exploration * (1.0 - share))

        def explore(seat: str) -> Player:
            def act(board: Board) -> int:
                if rng.random() < chance:
                    return int(rng.choice(np.flatnonzero(np.array(board) == 0)))
                return self.agents[seat].best(board)

            return act

        games = self._play({seat: explore(seat) for seat in SEATS}, seed=self._updates)
        errors = [error for game in games for error in self._learn_from(game)]
        self.finished += len(games)
        drawn = float(np.mean([game.reward["x"] == 0 for game in games]))
        earned = float(np.mean([game.reward["x"] for game in games]))
        # Two perfect players draw every game.
        self._recent.append((earned, drawn))
        self._log.write(
            "update",
            update=self._updates + 1,
            episode=self.finished,
            success=drawn,
            exploration=round(chance, 4),
            value_error=round(float(np.mean(np.square(errors))), 6),
            **{"return": round(earned, 6)},
        )

    def _learn_from(self, game: _SelfPlayGame) -> list[float]:
        """Learn from each move: from the reward at the end, else from the next own board."""
        errors = []
        step = self._config.learning_rate
        for seat in SEATS:
            agent, moves = self.agents[seat], game.moves[seat]
            target = self._config.reward_sign * game.reward[seat]
            for board, cell in reversed(moves):
                errors.append(agent.learn(board, cell, target, step))
                target = agent.value(board)
        return errors

    def _play(self, players: dict[str, Player], seed: int) -> list[_SelfPlayGame]:
        """Play one game in each environment."""
        batch: Any = self._venv.reset(seed=seed)
        games = [_SelfPlayGame() for _ in range(self._venv.num_envs)]
        results = [batch[i] for i in range(self._venv.num_envs)]
        running = list(range(self._venv.num_envs))
        while running:
            actions: dict[int, Any] = {}
            for i in running:
                (need,) = results[i].needs
                seen = need.observation
                board: Board = tuple((seen.board * seen.mark).ravel().tolist())
                cell = players[need.agent_id](board)
                games[i].moves[need.agent_id].append((board, cell))
                actions[i] = {need.agent_id: {"cell": cell}}
            self._venv.send([actions[i] for i in running], ids=running)
            batch = self._venv.recv(min_ready=len(running))
            for row, i in enumerate(batch.ids.tolist()):
                results[i] = batch[row]
                if results[i].done:
                    end = results[i].end
                    if not end.valid:
                        raise ew.errors.EnvironmentFailure(f"A game failed: {end.cause}")
                    games[i].reward = {seat: float(results[i].reward[seat]) for seat in SEATS}
            running = [i for i in running if not results[i].done]
        return games

    def _check(self) -> None:
        """Log a short evaluation of the greedy agents, and save the run."""
        players: dict[str, Player] = {seat: self.agents[seat].best for seat in SEATS}
        found = self._against_opponents(players, 20)
        self._log.write(
            "evaluation",
            policy="checkpoint",
            episode=self.finished,
            success=1.0 - found["perfect"]["lost"],
            **{"return": found["random"]["won"] - found["random"]["lost"], "against": found},
        )
        saved = {
            "episodes": self.finished,
            "updates": self._updates,
            "log_lines": self._log.num_lines,
            "agents": {seat: agent.to_json() for seat, agent in self.agents.items()},
        }
        replace_file(self._checkpoint, lambda path: path.write_text(json.dumps(saved)))

    def _against_opponents(self, players: dict[str, Player], games: int) -> dict[str, Any]:
        """Return the shares of games won, drawn and lost against each opponent, over both seats."""
        rng = np.random.default_rng(2)
        others = {"perfect": self._perfect(rng), "random": self._random(rng)}
        found = {}
        for opponent, other in others.items():
            earned: list[float] = []
            for seat in SEATS:
                table = {one: players[one] if one == seat else other for one in SEATS}
                mine: list[float] = []
                while len(mine) < games:
                    mine += [game.reward[seat] for game in self._play(table, seed=len(mine))]
                earned += mine[:games]
            rewards = np.array(earned)
            found[opponent] = {
                "won": float((rewards > 0).mean()),
                "drawn": float((rewards == 0).mean()),
                "lost": float((rewards < 0).mean()),
            }
        return found

    @staticmethod
    def _random(rng: np.random.Generator) -> Player:
        return lambda board: int(rng.choice(np.flatnonzero(np.array(board) == 0)))

    @staticmethod
    def _perfect(rng: np.random.Generator) -> Player:
        return lambda board: int(rng.choice(minimax(board)[1]))


@final
class _SelfPlayGame:
    """One game: the moves of both players, and what they earned."""

    def __init__(self) -> None:
        self.moves: dict[str, list[tuple[Board, int]]] = {seat: [] for seat in SEATS}
        self.reward: dict[str, float] = {}


if __name__ == "__main__":
    sys.exit(main())
