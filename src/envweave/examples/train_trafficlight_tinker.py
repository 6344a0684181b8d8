"""Train on TrafficLight by the training loop of Tinker's cookbook.

    python -m envweave.examples.train_trafficlight_tinker

The loop plays groups of conversations, and trains a language model through Tinker. It needs
`$TINKER_API_KEY`; `$TINKER_BASE_URL` names another service than Tinker's own. To check that
learning follows the reward, flip its sign (`--reward-sign -1`): the share of right moves falls
below chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np

import envweave as ew
from envweave.agents import ReplyAgent
from envweave.examples.traffic_light import RULES
from envweave.examples.training import FIRST_SEED, Evaluation, RunLog, read_run_log
from envweave.examples.training.program import (
    RECENT,
    ShowProgress,
    TrainingConfig,
    TrainingInterrupted,
    positive_float,
    positive_int,
    run_program,
    training_parser,
)
from envweave.examples.training.tinker_policy import require_key

ENV = "pkg://envweave.examples.traffic_light:TrafficLightEnv"
LIGHTS = 3
CHAT = {"render": "{color}", "max_invalid": LIGHTS}
SEEDS = 65_536  # of a run; not the number of its episodes, so that a longer one goes on the same
COOKBOOK, CONSOLE = "cookbook", "console.log"
"""Where the cookbook writes in the run's directory, and the file of what it prints."""


@dataclass(frozen=True, kw_only=True)
class TrafficLightTinkerConfig(TrainingConfig):
    """How to train on TrafficLight through the cookbook.

    Attributes:
        base_model: The model's name at Tinker.
        renderer: The cookbook's name of how conversations become tokens; `None` takes the one that
            it recommends for the model.
        tokenizer: `MODULE:NAME` of a function or class that makes a tokenizer like those of
            `transformers`; `None` takes the model's own, which is downloaded.
        rank: The rank of the LoRA weights.
        learning_rate: The learning rate of Adam.
        loss_fn: Tinker's loss.
        max_tokens: The longest reply.
        group_size: How many episodes share a seed.
        reward_sign: −1 flips the reward, to check that learning follows it.
        evaluation_episodes: How many episodes evaluate a policy.
        checkpoint_every: After how many batches the run is saved.
    """

    num_envs: int = 64
    episodes: int = 3_840
    base_model: str = "Qwen/Qwen3-8B"
    renderer: str | None = None
    tokenizer: str | None = None
    rank: int = 32
    learning_rate: float = 4e-5
    loss_fn: str = "importance_sampling"
    max_tokens: int = 8
    group_size: int = 8
    reward_sign: int = 1
    evaluation_episodes: int = 128
    checkpoint_every: int = 20

    @property
    def is_fake(self) -> bool:
        """Whether the model is that of a test service, not a language model."""
        return self.base_model.startswith("fake/")


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    parser, add = training_parser(
        prog or "python -m envweave.examples.train_trafficlight_tinker",
        "Train a language model on TrafficLight by the training loop of Tinker's cookbook. Needs "
        "$TINKER_API_KEY.",
        TrafficLightTinkerConfig(),
        "trafficlight-v0",
        can_resume=True,
    )
    add("--base-model", metavar="NAME", help="the model at Tinker")
    add("--renderer", metavar="NAME",
        help="the cookbook's renderer; by default the one for the model")  # fmt: skip
    add("--tokenizer", metavar="MODULE:NAME",
        help="makes the tokenizer; by default the model's own, which is downloaded")  # fmt: skip
    add("--rank", type=positive_int, metavar="N", help="rank of the LoRA weights")
    add("--learning-rate", "--lr", type=positive_float, metavar="X", help="learning rate of Adam")
    add("--loss-fn", choices=("importance_sampling", "ppo", "cispo"), help="Tinker's loss")
    add("--max-tokens", type=positive_int, metavar="N", help="longest reply")
    add("--group-size", type=positive_int, metavar="N", help="episodes that share a seed")
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the reward: a sanity check, success must fall below chance")  # fmt: skip
    add("--evaluation-episodes", type=positive_int, metavar="N",
        help="episodes to evaluate a policy")  # fmt: skip
    add("--checkpoint-every", type=positive_int, metavar="N", help="batches between checkpoints")
    return run_program(parser, argv, TrafficLightTinkerConfig, train)


def train(config: TrafficLightTinkerConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate before and after, write the log, and return the run's directory.

    Raises:
        OptionError: `$TINKER_API_KEY` is not set, or an option does not fit.
        MissingExtraError: The cookbook is not installed.
        EnvWeaveError: The environments, the service or the run directory is not available.
        TrainingInterrupted: Ctrl-C was pressed; the log keeps what was written.
    """
    require_key()
    if config.num_envs % config.group_size or config.episodes % config.num_envs:
        raise ew.errors.OptionError(
            f"--num-envs {config.num_envs} must be a multiple of --group-size {config.group_size}, "
            f"and --episodes {config.episodes} one of --num-envs."
        )
    try:
        import tinker
        from tinker_cookbook.checkpoint_utils import get_last_checkpoint
        from tinker_cookbook.exceptions import TinkerCookbookError
    except ImportError:
        raise ew.errors.MissingExtraError.for_extra(
            "Training by Tinker's cookbook needs tinker-cookbook.", "train,tinker-cookbook"
        ) from None
    renderer = _renderer(config)
    _register_tokenizer(config)
    run_dir = config.open_run_dir("trafficlight-tinker")
    folder = run_dir / COOKBOOK
    folder.mkdir(exist_ok=True)
    saved = get_last_checkpoint(str(folder)) if config.resume else None
    batches = 0 if saved is None else saved.batch or 0
    with RunLog(run_dir, _settings(config), keep_lines=_lines_of(run_dir, batches)) as log:
        run = _CookbookTraining(config, renderer, log, folder, show)
        try:
            if not batches:
                run.evaluate_random()
            run.train()
            run.evaluate_trained()
        except KeyboardInterrupt:
            log.write("interrupted", episodes=run.finished)
            raise TrainingInterrupted(run_dir, run.finished, can_resume=True) from None
        except (tinker.TinkerError, TinkerCookbookError, ValueError) as error:
            # The SDK wraps the status of a result in a ValueError.
            raise ew.errors.ServerError(
                f"Training through Tinker failed: {type(error).__name__}: {error}. The weights of "
                f"the last checkpoint are kept; continue with the same options and: --run-dir "
                f"{run_dir} --resume. {folder / CONSOLE} has what the cookbook said."
            ) from error
    return run_dir


def _renderer(config: TrafficLightTinkerConfig) -> str:
    """Return the name of the renderer.

    Raises:
        OptionError: The cookbook does not know one for the model.
    """
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.model_info import get_recommended_renderer_name

    if config.renderer is not None:
        return config.renderer
    try:
        return str(get_recommended_renderer_name(config.base_model))
    except (ConfigurationError, KeyError, ValueError) as error:
        raise ew.errors.OptionError(
            f"Tinker's cookbook has no renderer for --base-model {config.base_model}. Name one: "
            "--renderer qwen3_instruct."
        ) from error


def _register_tokenizer(config: TrafficLightTinkerConfig) -> None:
    """Have the cookbook find the tokenizer that the options name.

    Raises:
        OptionError: It cannot be imported.
    """
    from tinker_cookbook.tokenizer_utils import register_tokenizer

    if config.tokenizer is None:
        return
    module, _, name = config.tokenizer.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ew.errors.OptionError(
            f"--tokenizer {config.tokenizer} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    register_tokenizer(config.base_model, make)


def _settings(config: TrafficLightTinkerConfig) -> dict[str, Any]:
    title = "TrafficLight, Tinker's cookbook"
    if config.is_fake:
        title += " [fake service, no language model]"
    settings = config.logged(title)
    # Where the model runs; a fake's figures must never be taken for a result.
    settings["env_backend"] = settings["backend"]
    settings["backend"] = "fake" if config.is_fake else "tinker"
    return settings


def _lines_of(run_dir: Path, batches: int) -> int:
    """Return how many lines the log had after this many batches."""
    if not batches:
        return 0
    kinds = [(line["type"], line.get("update")) for line in read_run_log(run_dir)]
    return kinds.index(("update", batches)) + 1


@final
class _CookbookTraining:
    """A training run: the cookbook's loop, and our log of it."""

    def __init__(
        self,
        config: TrafficLightTinkerConfig,
        renderer: str,
        log: RunLog,
        folder: Path,
        show: ShowProgress | None,
    ) -> None:
        self._config, self._renderer, self._log = config, renderer, log
        self._folder, self._show = folder, show
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._batch, self._missing = 0, 0
        self._earned: list[float] = []
        self.finished = 0

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: the cookbook copies its settings to log them."""
        return self

    # What the dataset reports

    def begin_batch(self, index: int, groups: int) -> None:
        """Note that a batch is about to be played."""
        self.finish_batch()
        self._batch, self._missing = index + 1, groups

    def finish_group(self, earned: list[float]) -> None:
        """Note what a group earned; with the last one, log the batch."""
        self._earned += earned
        self._missing -= 1
        if not self._missing:
            self.finish_batch()

    def finish_batch(self) -> None:
        """Log the batch, once. Groups that could not be played are missing in it."""
        earned, self._earned = self._earned, []
        if not earned:
            return
        self.finished = self._batch * self._config.num_envs
        mean = float(np.mean(earned))
        self._log.write(
            "update",
            update=self._batch,
            episode=self.finished,
            played=len(earned),
            success=mean,
            **{"return": mean},
        )
        self._recent.append(mean)
        if self._show is not None:
            recent = float(np.mean(self._recent))
            self._show(self.finished, recent, recent)

    # Training

    def train(self) -> None:
        """Run the cookbook's loop, from its last checkpoint if it has one.

        Raises:
            RolloutFailedError: No episode could be played.
        """
        from tinker_cookbook.rl import train as cookbook

        from envweave.examples.training.reporting_groups import ReportingDatasetBuilder
        from envweave.trainers.tinker_dataset import TinkerDatasetBuilder

        config = self._config
        batches = config.episodes // config.num_envs
        builder = TinkerDatasetBuilder(
            env=ENV,
            model_name=config.base_model,
            renderer_name=self._renderer,
            batch_size=config.num_envs // config.group_size,
            group_size=config.group_size,
            batches=batches,
            first_seed=config.seed * SEEDS,
            options=CHAT,
            make=self._make(),
            limits=self._limits(),
        )
        settings = cookbook.Config(
            learning_rate=config.learning_rate,
            dataset_builder=ReportingDatasetBuilder(
                builder=builder, reward_sign=config.reward_sign, report=self
            ),
            model_name=config.base_model,
            renderer_name=self._renderer,
            recipe_name="envweave_trafficlight",
            max_tokens=config.max_tokens,
            log_path=str(self._folder),
            lora_rank=config.rank,
            loss_fn=config.loss_fn,
            eval_every=0,
            save_every=config.checkpoint_every,
            num_groups_to_log=0,
            rollout_json_export=False,
            rollout_error_tolerance=True,
        )
        with self._quiet():
            asyncio.run(cookbook.main(settings))
        self.finish_batch()
        if self._batch and not self.finished:
            raise ew.errors.RolloutFailedError(
                f"No episode could be played. {self._folder / CONSOLE} says why."
            )

    def _make(self) -> dict[str, Any]:
        return {"lights": LIGHTS, "max_episode_steps": LIGHTS, **self._config.placement()}

    @staticmethod
    def _limits() -> dict[str, Any]:
        # What is cut off or not ended earns nothing, as a wrong move does.
        return {"failed_parse_reward": 0.0, "context_overflow_reward": 0.0}

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep what the cookbook prints in a file, and its log handlers to itself."""
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            with (
                (self._folder / CONSOLE).open("a", encoding="utf-8") as console,
                contextlib.redirect_stdout(console),
                contextlib.redirect_stderr(console),
            ):
                yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)

    # Evaluation

    def evaluate_random(self) -> None:
        """Play episodes with random moves, and log the result."""
        rng = random.Random(self._config.seed)  # noqa: S311 - a baseline
        agent = ReplyAgent(lambda _: rng.choice(list(RULES.values())), **CHAT)
        with ew.pool(ENV, size=self._config.num_envs, **self._make()) as pool:
            played = ew.rollout(pool, agent, seed=self._seeds(), progress=False).run()
        self._log_evaluation("random", [one.reward for one in played if one.usable])

    def evaluate_trained(self) -> None:
        """Play the same episodes with the likeliest replies of the trained model."""
        self._log_evaluation("trained", asyncio.run(self._play_trained()))

    async def _play_trained(self) -> list[float]:
        import tinker
        from tinker_cookbook.checkpoint_utils import get_last_checkpoint
        from tinker_cookbook.completers import TinkerTokenCompleter
        from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
        from tinker_cookbook.rl.rollouts import do_group_rollout

        from envweave.trainers.tinker_cookbook import TinkerGroup

        config = self._config
        saved = get_last_checkpoint(str(self._folder), required_key="sampler_path")
        assert saved is not None  # the cookbook saves one at its end
        sampler = await tinker.ServiceClient().create_sampling_client_async(
            model_path=saved.sampler_path
        )
        policy = TinkerTokenCompleter(sampler, max_tokens=config.max_tokens, temperature=0.0)
        groups = [
            TinkerGroup(
                ENV, config.base_model, self._renderer, 1, seed=seed, options=CHAT,
                make=self._make(), limits=self._limits(),
            )
            for seed in self._seeds()
        ]  # fmt: skip
        playing = (do_group_rollout(one, policy, RetryOnFailure()) for one in groups)
        with self._quiet():
            played = await asyncio.gather(*playing)
        return [reward for one in played for reward in one.get_total_rewards()]

    def _seeds(self) -> list[int]:
        return [FIRST_SEED + index for index in range(self._config.evaluation_episodes)]

    def _log_evaluation(self, policy: str, rewards: list[Any]) -> None:
        mean = float(np.mean(rewards))
        self._log.write(
            "evaluation", policy=policy, **Evaluation(mean, mean, len(rewards)).logged()
        )


if __name__ == "__main__":
    sys.exit(main())
