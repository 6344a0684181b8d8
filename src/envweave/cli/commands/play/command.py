"""`envweave play`: an environment, played by hand in the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from envweave.cli import arguments, output

if TYPE_CHECKING:
    import envweave as ew
    from envweave.cli.commands.play.prompts import ActionPrompt, LineReader
    from envweave.cli.commands.play.screen import PlayScreen


def play_command(
    env_id: arguments.EnvId,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; drawn if omitted.", metavar="N", min=0)
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="ID of the task; drawn if omitted.", metavar="ID")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Truncate every episode after N steps.", metavar="N", min=1)
    ] = None,
    backend: arguments.Backend = None,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    json: arguments.Json = False,
) -> int:
    """Play an environment by hand: see what an agent sees, and act.

    Prompts follow the actions of the environment: choices, numbers within bounds, text, code.
    Several agents are asked by name. :help lists what else can be typed; Ctrl-D ends the game.
    With --json the game is shown on stderr, and its record is printed at the end.
    """
    import envweave as ew
    from envweave.cli.commands.play.prompts import ActionPrompt, LineReader
    from envweave.cli.commands.play.screen import PlayScreen

    keywords = arguments.read_keywords(arg)
    screen = PlayScreen(output.console(stderr=json))
    reader = LineReader(screen.write)
    with output.stdout_reserved(json):
        env_id = arguments.installed(env_id, install)
        with ew.make(env_id, backend=backend, max_episode_steps=max_steps, kwargs=keywords) as env:
            game = _Game(env, screen, reader, ActionPrompt(reader, screen.mistake))
            try:
                game.play(seed, task)
            except EOFError:
                screen.note("")
    if json:
        output.write_json({"id": env_id, "episodes": [one.as_json() for one in game.episodes]})
    return 0


@dataclass(slots=True)
class GameEpisode:
    """One episode that was played by hand, to its end or not.

    Attributes:
        first: Its first result.
        total: The sum of its rewards, by agent if there are several.
        end: How it ended; `None` if the player left.
        steps: Its actions and their rewards.
    """

    first: ew.StepResult[Any]
    total: Any = None
    end: ew.EpisodeEnd | None = None
    steps: list[tuple[Any, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return its entry in the output of `envweave play --json`."""
        return {
            "seed": self.first.info.get("seed"),
            "task_id": self.first.task_id,
            "return": self.total,
            "reason": None if self.end is None else self.end.reason,
            "cause": None if self.end is None else self.end.cause,
            "steps": [{"action": action, "reward": reward} for action, reward in self.steps],
        }


@final
class _Game:
    """Plays episodes until the player leaves."""

    def __init__(
        self, env: ew.Env, screen: PlayScreen, reader: LineReader, prompt: ActionPrompt
    ) -> None:
        from envweave.testing import RandomPolicy

        self.episodes: list[GameEpisode] = []
        self._env = env
        self._screen = screen
        self._reader = reader
        self._prompt = prompt
        self._random = RandomPolicy(env.action_spec)

    def play(self, seed: int | None, task: str | None) -> None:
        """Play; the seed is that of the first episode.

        Raises:
            EOFError: The player left.
        """
        self._screen.note(":help lists commands; Ctrl-D ends the game.")
        while True:
            given: dict[str, Any] = {"seed": seed, "task": task}
            result = self._env.reset(**{k: v for k, v in given.items() if v is not None})
            seed = None
            self.episodes.append(GameEpisode(result))
            self._screen.begin(len(self.episodes), result)
            if self._play_episode(result) and not self._play_again():
                return

    def _play_episode(self, result: ew.StepResult[Any]) -> bool:
        """Play to the end; return whether it was reached, rather than another one asked for."""
        from envweave.cli.commands.play.prompts import CommandGivenError
        from envweave.cli.random_episodes import add_reward
        from envweave.errors import ActionError, SpecError

        episode = self.episodes[-1]
        while not result.done:
            try:
                action = self._read_action(result)
            except CommandGivenError as command:
                if str(command) == ":reset":
                    return False
                if str(command) != ":random":
                    self._obey(str(command))
                    continue
                action = self._random(result)
                self._screen.value("at random", action)
            try:
                result = self._env.step(action)
            except (ActionError, SpecError) as error:
                self._screen.mistake(str(error))
                continue
            episode.total = add_reward(episode.total, result.reward)
            episode.steps.append((action, result.reward))
            self._screen.step(result, episode.total)
        episode.end = result.end
        assert result.end is not None
        self._screen.end(result.end, episode.total, result.step_index)
        return True

    def _read_action(self, result: ew.StepResult[Any]) -> Any:
        from envweave.codec import AgentsSpec, AnySpec
        from envweave.types import ToolResult

        if result.tool_calls:
            call = result.tool_calls[0]
            return ToolResult(call.call_id, self._prompt.ask(AnySpec(), f"answer of {call.name}"))
        spec = self._env.action_spec
        if not isinstance(spec, AgentsSpec):
            return self._prompt.ask(spec, "action", result.needs[0].action_mask)
        actions = {}
        for need in result.needs:
            self._screen.needs(need)
            agent = need.agent_id
            actions[agent] = self._prompt.ask(spec[agent], f"action of {agent}", need.action_mask)
        return actions

    def _obey(self, command: str) -> None:
        from envweave.cli.commands.play.prompts import BLOCK_ENDS, BLOCK_OPENS, COMMANDS

        if command == ":quit":
            raise EOFError
        if command == ":state":
            self._screen.value("state", self._env.state())
            return
        for name, about in COMMANDS.items():
            self._screen.note(f"{name:9} {about}")
        self._screen.note(f"Text of several lines stands between {BLOCK_OPENS} and {BLOCK_ENDS}.")

    def _play_again(self) -> bool:
        answer = self._reader.read_text("Play again? (y or n) [n]: ")
        return answer.strip().lower() in ("y", "yes")
