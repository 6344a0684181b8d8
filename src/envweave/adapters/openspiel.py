"""The games of OpenSpiel as environments, with legal actions as masks and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from envweave.codec import Bounds
from envweave.environment import Environment, MultiAgentEnvironment
from envweave.errors import (
    ActionError,
    EnvNotFoundError,
    ForkError,
    MissingExtraError,
    OptionError,
    ResetNeededError,
    suggest,
)
from envweave.types import Action, Observation, State

Form = Literal["tensor", "text"]
View = Literal["information_state", "observation"]
_SUFFIX = {"tensor": "tensor", "text": "string"}


def pyspiel_module() -> ModuleType:
    """Import and return OpenSpiel's `pyspiel`.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pyspiel
    except ImportError:
        raise MissingExtraError.for_extra("OpenSpiel is not installed.", "openspiel") from None
    return pyspiel  # type: ignore[no-any-return]


@dataclass
class GameMove(Action):
    """A move as text, exactly as one of the legal moves that the observation lists."""

    move: str


@dataclass
class GameView(Observation):
    """What a player knows, as text, with the legal moves if it is to move."""

    prompt: str = ""


@dataclass(kw_only=True)
class GameState(State):
    """The state of the game, hidden information included.

    Attributes:
        history: The actions so far, those of chance included.
        text: OpenSpiel's own text of the state.
    """

    history: tuple[int, ...] = ()
    text: str = ""


def load_game(name: str, parameters: Mapping[str, Any]) -> Any:
    """Load a game: by its name and parameters, or by OpenSpiel's string with parameters.

    Raises:
        EnvNotFoundError: OpenSpiel has no such game.
        OptionError: The game does not take a parameter, or needs one; or players don't act in it.
    """
    pyspiel = pyspiel_module()
    short = name.partition("(")[0]
    known = {one.short_name: one for one in pyspiel.registered_games()}
    if short not in known:
        hint = suggest(short, known).replace("'", "'openspiel://", 1)
        raise EnvNotFoundError(
            f"OpenSpiel has no game {short!r}.{hint} `envweave list --available openspiel` shows "
            "all of them."
        )
    takes = list(known[short].parameter_specification)
    for parameter in parameters:
        if parameter not in takes:
            hint = suggest(parameter, takes) or f" It takes: {', '.join(takes) or 'none'}."
            raise OptionError(f"'openspiel://{short}' has no parameter {parameter!r}.{hint}")
    try:
        # With an empty dict, a string with parameters would be taken as the name of a game.
        game = pyspiel.load_game(name, dict(parameters)) if parameters else pyspiel.load_game(name)
    except (pyspiel.SpielError, TypeError) as error:
        raise OptionError(f"'openspiel://{name}' cannot be loaded: {error}") from error
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise OptionError(
            f"'openspiel://{name}' is a mean-field game, in which a distribution moves and not a "
            "player. Use it through pyspiel itself."
        )
    return game


@final
class RunningGame:
    """One game and its episode: chance, legal actions, rewards, and what players see."""

    def __init__(self, game: Any, form: Form | None, view: View | None) -> None:
        pyspiel = pyspiel_module()
        for value, kind, name in ((form, Form, "form"), (view, View, "view")):
            if value is not None and value not in get_args(kind):
                choices = " or ".join(map(repr, get_args(kind)))
                raise OptionError(f"{name} must be {choices}, got {value!r}.")
        kind = game.get_type()
        self.game, self.name = game, str(kind.short_name)
        self.num_players = int(game.num_players())
        offered = [
            (one_form, one_view)
            for one_form in get_args(Form)
            for one_view in get_args(View)
            if getattr(kind, f"provides_{one_view}_{_SUFFIX[one_form]}")
        ]
        fitting = [one for one in offered if form in (None, one[0]) and view in (None, one[1])]
        if not fitting:
            raise OptionError(
                f"'openspiel://{self.name}' has no view with form={form!r}, view={view!r}. It has: "
                f"{', '.join(f'{one} as {form}' for form, one in offered) or 'none'}."
            )
        self.form, view = fitting[0]
        self._look = f"{view}_{_SUFFIX[self.form]}"
        self._shape: tuple[int, ...] = ()
        try:
            first = game.new_initial_state()
            if first.is_player_node():
                first.legal_actions()
            if self.form == "tensor":
                self._shape = tuple(getattr(game, f"{view}_tensor_shape")())
        except pyspiel.SpielError as error:
            raise OptionError(
                f"'openspiel://{self.name}' cannot be played by numbered actions: {error}"
            ) from error
        # Such games draw inside; the draws are seeded if the game takes a seed.
        self.is_sampled = kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
        self.takes_seed = "rng_seed" in kind.parameter_specification
        self.state: Any = None
        self._rng = np.random.default_rng()
        self._returns = np.zeros(self.num_players)

    @property
    def action_hint(self) -> Any:
        """The type of an action."""
        if self.form == "text":
            return GameMove
        return Annotated[int, Bounds(0, self.game.num_distinct_actions() - 1)]

    @property
    def observation_hint(self) -> Any:
        """The type of an observation."""
        if self.form == "text":
            return GameView
        return Annotated[np.ndarray, Bounds(shape=self._shape, dtype="float32")]

    def begin(self, seed: int | None) -> None:
        """Begin an episode, and let chance move first if it is its turn."""
        if self.is_sampled and self.takes_seed:
            parameters = {**self.game.get_parameters(), "rng_seed": (seed or 0) % 2**31}
            self.game = pyspiel_module().load_game(self.name, parameters)
        self._rng = np.random.default_rng(seed)
        self.state = self.game.new_initial_state()
        self._returns = np.zeros(self.num_players)
        self._let_chance_move()

    def acting(self) -> list[int]:
        """Return the players who must act now."""
        if self.state.is_terminal():
            return []
        if not self.state.is_simultaneous_node():
            return [self.state.current_player()]
        return [one for one in range(self.num_players) if self.state.legal_actions(one)]

    def apply(self, actions: Mapping[int, Any]) -> NDArray[np.float64]:
        """Apply the actions of all who must act, and return what each player earned.

        Raises:
            ActionError: One is not legal; nothing has changed.
        """
        chosen = {player: self._read(player, action) for player, action in actions.items()}
        if self.state.is_simultaneous_node():
            self.state.apply_actions([chosen.get(one, 0) for one in range(self.num_players)])
        else:
            ((_, action),) = chosen.items()
            self.state.apply_action(action)
        self._let_chance_move()
        before, self._returns = self._returns, np.array(self.state.returns(), np.float64)
        earned: NDArray[np.float64] = self._returns - before
        return earned

    def see(self, player: int) -> tuple[Any, dict[str, Any]]:
        """Return what a player sees, and its info."""
        if self.state.is_terminal():
            legal: list[int] = []
        else:
            legal = self.state.legal_actions(player)
        shown = getattr(self.state, self._look)(player)
        if self.form == "text":
            moves = [self.state.action_to_string(player, action).strip() for action in legal]
            listed = f"\n\nLegal moves: {', '.join(moves)}" if moves else ""
            return GameView(f"{shown}{listed}"), {"legal_moves": moves}
        mask = np.zeros(self.game.num_distinct_actions(), np.int8)
        mask[legal] = 1
        return np.array(shown, np.float32).reshape(self._shape), {"action_mask": mask}

    def snapshot(self) -> dict[str, Any]:
        """Return the episode as plain data.

        Raises:
            ResetNeededError: No episode has begun.
            ForkError: Chance draws inside the game.
        """
        if self.state is None:
            raise ResetNeededError("There is no episode to take a snapshot of. Call reset() first.")
        if self.is_sampled:
            raise ForkError(
                f"'openspiel://{self.name}' samples its chance events internally, so its state "
                "cannot be saved."
            )
        return {
            "game": str(self.game),
            "state": self.state.serialize(),
            "rng": self._rng.bit_generator.state,
            "returns": self._returns.tolist(),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot, of this environment or another one of the same game.

        Raises:
            OptionError: It is of another game.
        """
        if snapshot["game"] != str(self.game):
            raise OptionError(
                f"The snapshot is of {snapshot['game']}, and this environment plays {self.game}."
            )
        self.state = self.game.deserialize_state(snapshot["state"])
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = snapshot["rng"]
        self._returns = np.array(snapshot["returns"], np.float64)

    def reseed(self, seed: int) -> None:
        """Draw the moves of chance from this seed from now on."""
        self._rng = np.random.default_rng(seed)

    def shown_state(self) -> GameState:
        """Return the state behind the observations."""
        if self.state is None:
            return GameState()
        return GameState(history=tuple(self.state.history()), text=str(self.state))

    def _read(self, player: int, action: Any) -> int:
        legal = self.state.legal_actions(player)
        if self.form == "text":
            moves = {self.state.action_to_string(player, one).strip(): one for one in legal}
            text = action.move.strip()
            if text not in moves:
                raise ActionError(
                    f"{text!r} is not a legal move of player_{player}.{suggest(text, moves)} "
                    f"Legal: {', '.join(moves)}."
                )
            return int(moves[text])
        if action not in legal:
            raise ActionError(
                f"{action!r} is not a legal action of player_{player}. Legal: {legal}; the "
                "action mask shows them."
            )
        return int(action)

    def _let_chance_move(self) -> None:
        while self.state.is_chance_node():
            outcomes, chances = zip(*self.state.chance_outcomes(), strict=True)
            weights = np.array(chances, np.float64)
            self.state.apply_action(int(self._rng.choice(outcomes, p=weights / weights.sum())))


def from_openspiel(game: Any, *, form: Form | None = None, view: View | None = None) -> Environment:
    """Return a game of OpenSpiel as an environment, of one agent or several.

    Players are `player_0`, `player_1`, …, and act by turns or at once, as the game has it. Legal
    actions are shown as the action mask, and any other is refused. Moves of chance are drawn by
    the seed. `snapshot` and `restore` keep and continue an episode exactly.

    Args:
        game: A `pyspiel.Game`.
        form: `"tensor"` for arrays and numbers, `"text"` for text and moves by name; default:
            the first of these that the game has.
        view: What players see: their `"information_state"` (perfect recall), or the current
            `"observation"`; default: the first of these that the game has.

    Raises:
        OptionError: The game does not have this view in this form.
    """
    running = RunningGame(game, form, view)
    return SinglePlayerGame(running) if running.num_players == 1 else SeveralPlayersGame(running)


@final
class SinglePlayerGame(Environment):
    """A game of OpenSpiel for one player."""

    def __init__(self, running: RunningGame) -> None:
        self._running = running
        self.action_spec, self.observation_spec = running.action_hint, running.observation_hint
        self.deterministic = running.takes_seed or not running.is_sampled

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._running.begin(seed)
        return self._running.see(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action."""
        (earned,) = self._running.apply({0: action})
        seen, info = self._running.see(0)
        return seen, float(earned), self._running.state.is_terminal(), False, info

    def snapshot(self) -> dict[str, Any]:
        """Return the episode as plain data."""
        return self._running.snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        self._running.restore(snapshot)

    def reseed(self, seed: int) -> None:
        """Draw the moves of chance from this seed from now on."""
        self._running.reseed(seed)

    @property
    def state(self) -> GameState:
        """The state of the game."""
        return self._running.shown_state()


@final
class SeveralPlayersGame(MultiAgentEnvironment):
    """A game of OpenSpiel for several players, by turns or at once."""

    def __init__(self, running: RunningGame) -> None:
        self._running = running
        self.possible_agents = [f"player_{one}" for one in range(running.num_players)]
        self.action_spec = dict.fromkeys(self.possible_agents, running.action_hint)
        self.observation_spec = dict.fromkeys(self.possible_agents, running.observation_hint)
        self.deterministic = running.takes_seed or not running.is_sampled

    def to_act(self) -> list[str]:
        """Return the players who must act now."""
        return [self.possible_agents[one] for one in self._running.acting()]

    def reset(self, *, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._running.begin(seed)
        return self._see(range(self._running.num_players))

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Apply the actions of the players who must act."""
        players = {self.possible_agents.index(agent): one for agent, one in actions.items()}
        earned = self._running.apply(players)
        is_over = self._running.state.is_terminal()
        everyone = range(self._running.num_players)
        # Only those who act next, since an observation may be large.
        seen, infos = self._see(everyone if is_over else self._running.acting())
        rewards = {agent: float(earned[one]) for one, agent in enumerate(self.possible_agents)}
        over = dict.fromkeys(self.possible_agents, is_over)
        return seen, rewards, over, dict.fromkeys(self.possible_agents, False), infos

    def snapshot(self) -> dict[str, Any]:
        """Return the episode as plain data."""
        return self._running.snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        self._running.restore(snapshot)

    def reseed(self, seed: int) -> None:
        """Draw the moves of chance from this seed from now on."""
        self._running.reseed(seed)

    @property
    def state(self) -> GameState:
        """The state of the game."""
        return self._running.shown_state()

    def _see(self, players: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        both = {self.possible_agents[one]: self._running.see(one) for one in players}
        return {agent: one[0] for agent, one in both.items()}, {
            agent: one[1] for agent, one in both.items()
        }
