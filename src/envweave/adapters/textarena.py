"""The games of TextArena as environments: text in, text out, by turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, final, get_args

from envweave.adapters.global_random import GlobalRandomState
from envweave.environment import Environment, MultiAgentEnvironment
from envweave.errors import (
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    StartupError,
    format_error,
    suggest,
)
from envweave.types import Action, Observation

Shown = Literal["new", "full"]

_MAX_PLAYERS = 15


def textarena_module() -> ModuleType:
    """Import and return TextArena.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import textarena
    except ImportError:
        raise MissingExtraError.for_extra("TextArena is not installed.", "textarena") from None
    return textarena  # type: ignore[no-any-return]


@dataclass
class TextMove(Action):
    """What a player says, with its move in the form that the game asks for."""

    text: str


@dataclass
class TextView(Observation):
    """What a player is shown."""

    prompt: str = ""


def find_game(name: str) -> Any:
    """Return TextArena's own recipe of a game.

    Raises:
        EnvNotFoundError: There is none.
        MissingExtraError: TextArena is not installed.
    """
    known = textarena_module().envs.registration.ENV_REGISTRY
    if name not in known:
        hint = suggest(name, known).replace("'", "'textarena://", 1)
        raise EnvNotFoundError(
            f"TextArena has no game {name!r}.{hint} `envweave list --available textarena` shows "
            "all of them."
        )
    return known[name]


@final
class TextGame:
    """One game of TextArena and its episode.

    TextArena draws from the random generators of the process, and seeds them at each reset. Here
    every game has a state of its own, which is in place only while its code runs. Each episode
    plays a new object, since wrappers keep what they have shown.
    """

    def __init__(
        self, name: str, num_players: int | None, shown: Shown, keywords: Mapping[str, Any]
    ) -> None:
        if shown not in get_args(Shown):
            raise OptionError(
                f"observation must be 'new' or 'full', got {shown!r}."
                f"{suggest(str(shown), get_args(Shown))}"
            )
        self.name = name
        self._shown, self._keywords = shown, dict(keywords)
        self._random = GlobalRandomState()
        self._game: Any = None
        self.num_players = self._count_players(num_players)
        self.rewards: Mapping[int, Any] | None = None
        self.outcome: Mapping[int, Any] = {}

    @property
    def current(self) -> int:
        """The player to move."""
        return int(self._core.state.current_player_id)

    @property
    def turn(self) -> int:
        """How many turns there were."""
        return 0 if self._game is None else int(getattr(self._core.state, "turn", 0))

    def begin(self, seed: int | None) -> None:
        """Begin an episode."""
        self._random.seed(seed)
        with self._random:
            self._game = self._make()
            self._game.reset(num_players=self.num_players, seed=seed)
        self.rewards, self.outcome = None, {}

    def move(self, text: str) -> bool:
        """Let the current player move; return whether the game is over."""
        with self._random:
            is_over, _ = self._game.step(action=text)
            if is_over:
                self.rewards, self.outcome = self._game.close()
        return bool(is_over)

    def see(self, player: int) -> TextView:
        """Return what a player sees, and forget that it is new."""
        state = self._core.state
        with self._random:
            if self._shown == "new":
                unseen, state.observations[player] = state.observations[player], []
                return TextView(self._render(unseen))
            current, state.current_player_id = state.current_player_id, player
            try:
                _, shown = self._game.get_observation()
            finally:
                state.current_player_id = current
        return TextView(shown if isinstance(shown, str) else self._render(shown))

    def outcome_of(self, player: int) -> dict[str, Any]:
        """Return what TextArena reports about a player at the end."""
        reported = self.outcome.get(player) or {}
        metrics = {
            name: float(reported[name])
            for name in ("invalid_move", "turn_count")
            if name in reported
        }
        found: dict[str, Any] = {"metrics": metrics}
        for name in ("reason", "role"):
            if reported.get(name) is not None:
                found[name] = str(reported[name])
        return found

    @property
    def _core(self) -> Any:
        game = self._game
        while isinstance(game, textarena_module().core.Wrapper):
            game = game.env
        return game

    def _render(self, messages: Iterable[Any]) -> str:
        """Render messages as TextArena's own wrapper for language models does."""
        game_id, roles = textarena_module().GAME_ID, self._core.state.role_mapping or {}
        names = {game_id: "GAME"}
        return "\n".join(
            f"[{names.get(sender) or roles.get(sender, f'Player {sender}')}] {message}"
            for sender, message, _ in messages
        )

    def _make(self) -> Any:
        """Make TextArena's own object.

        Raises:
            OptionError: It does not take a keyword.
            MissingExtraError: It needs data or a package that is not installed.
            StartupError: It needs a newer Python, or the key of a service.
        """
        try:
            return textarena_module().make(self.name, **self._keywords)
        except TypeError as error:
            raise OptionError(
                f"'textarena://{self.name}' refuses its keywords: {error}."
            ) from error
        except (ImportError, FileNotFoundError) as error:
            raise MissingExtraError(
                f"'textarena://{self.name}' needs something that is not installed: {error}"
            ) from error
        except SyntaxError as error:
            raise StartupError(
                f"'textarena://{self.name}' needs a newer Python: {format_error(error)}"
            ) from error
        except LookupError as error:
            if "nltk" not in str(error):
                raise
            raise MissingExtraError(
                f"'textarena://{self.name}' needs word lists of nltk, which are not installed. "
                "Install them with: python -m nltk.downloader words averaged_perceptron_tagger_eng"
            ) from error
        except ValueError as error:
            if "API key" not in str(error):
                raise OptionError(
                    f"'textarena://{self.name}' refuses its keywords: {error}."
                ) from error
            raise StartupError(f"'textarena://{self.name}' cannot start: {error}") from error

    def _count_players(self, given: int | None) -> int:
        """Return the number of players: the given one, or the smallest that the game takes."""
        tried = [given] if given is not None else range(1, _MAX_PLAYERS + 1)
        refusal: Exception | None = None
        for number in tried:
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise OptionError(f"num_players must be an integer >= 1, got {number!r}.")
            self._random.seed(0)
            with self._random:
                self._game = self._make()
                try:
                    self._game.reset(num_players=number, seed=0)
                except (AssertionError, ValueError) as error:
                    refusal = error
                    continue
                except (KeyError, IndexError) as error:  # too few players for its roles
                    refusal = error
                    continue
            if len(self._core.state.observations) == number or given is not None:
                return number
        how = f"num_players={given}" if given is not None else "any number of players"
        raise OptionError(f"'textarena://{self.name}' does not take {how}: {refusal}.") from refusal


def from_textarena(
    name: str, *, num_players: int | None = None, observation: Shown = "new", **keywords: Any
) -> Environment:
    """Return a game of TextArena as an environment: of one agent, or several by turns.

    Players are `player_0`, `player_1`, …. Rewards come at the end, when the game closes. An invalid
    move is what the game makes of it: mostly a second try, then a loss. The last `info` has the
    game's reason, and the metrics `invalid_move` and `turn_count`.

    Args:
        name: Its ID, such as `"TicTacToe-v0"`.
        num_players: How many play; default: the smallest number that the game takes.
        observation: `"new"` for what was said since the player last looked, `"full"` for what
            TextArena's own wrapper shows, mostly the conversation from the start.
        **keywords: The game's own.

    Raises:
        EnvNotFoundError: There is no such game.
        OptionError: The number of players or a keyword is not supported.
        MissingExtraError: It needs data or a package that is not installed.
        StartupError: It needs a newer Python, or the key of a service.
    """
    find_game(name)
    game = TextGame(name, num_players, observation, keywords)
    return SinglePlayerTextGame(game) if game.num_players == 1 else SeveralPlayersTextGame(game)


@final
class SinglePlayerTextGame(Environment):
    """A game of TextArena for one player."""

    def __init__(self, game: TextGame) -> None:
        self._game = game

    def reset(self, *, seed: int | None = None) -> TextView:
        """Begin an episode."""
        self._game.begin(seed)
        return self._game.see(0)

    def step(self, action: TextMove) -> TextView:
        """Let the player move."""
        is_over = self._game.move(action.text)
        seen = self._game.see(0)
        if is_over:
            seen.done = True
            seen.reward = _reward(self._game.rewards, 0)
            seen.metadata.update(self._game.outcome_of(0))
        return seen


@final
class SeveralPlayersTextGame(MultiAgentEnvironment):
    """A game of TextArena for several players, by turns."""

    def __init__(self, game: TextGame) -> None:
        self._game = game
        self._over = True
        self.possible_agents = [f"player_{one}" for one in range(game.num_players)]

    def to_act(self) -> list[str]:
        """Return the player to move."""
        return [] if self._over else [self.possible_agents[self._game.current]]

    def reset(self, *, seed: int | None = None) -> dict[str, TextView]:
        """Begin an episode. Every player sees the rules."""
        self._game.begin(seed)
        self._over = False
        return {agent: self._game.see(one) for one, agent in enumerate(self.possible_agents)}

    def step(self, actions: dict[str, TextMove]) -> dict[str, TextView]:
        """Let the player to move say something; the next one sees what happened."""
        ((_, action),) = actions.items()
        self._over = self._game.move(action.text)
        if not self._over:
            player = self._game.current
            return {self.possible_agents[player]: self._game.see(player)}
        seen = {}
        for player, agent in enumerate(self.possible_agents):
            seen[agent] = self._game.see(player)
            seen[agent].done = True
            seen[agent].reward = _reward(self._game.rewards, player)
            seen[agent].metadata.update(self._game.outcome_of(player))
        return seen


def _reward(rewards: Mapping[int, Any] | None, player: int) -> float:
    """Return what a player earned; a game that names no winner pays no one."""
    earned = (rewards or {}).get(player)
    return 0.0 if earned is None else float(earned)
