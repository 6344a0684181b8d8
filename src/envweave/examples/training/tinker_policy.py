"""A language model that is sampled and trained by the Tinker service, through its official SDK.

Tokens and their log-probabilities are kept as they were sampled; text is never encoded again.
Every failure of the service is a `ServerError` that says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar, final

import numpy as np

from envweave.errors import MissingExtraError, OptionError, ServerError, suggest
from envweave.examples.training.program import TrainingConfig

KEY_VARIABLE = "TINKER_API_KEY"
CLOSE_TIMEOUT_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class Completion:
    """The model's answer to a prompt, token by token.

    Attributes:
        prompt: The ids of the prompt.
        tokens: The ids that were sampled, with the one that ended it.
        logprobs: The log-probability of each, under the weights that sampled it.
        stopped: Whether the model ended it, rather than the limit.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


@dataclass(frozen=True, kw_only=True)
class TinkerConfig(TrainingConfig):
    """The settings of a program that trains through Tinker.

    Attributes:
        base_model: The model's name at Tinker.
        rank: The rank of its LoRA weights.
        learning_rate: The learning rate of Adam.
        loss_fn: `importance_sampling`, `ppo` or `cispo`.
        max_tokens: The longest completion.
        tokenizer: `MODULE:NAME` of a function or class that makes a tokenizer like those of
            `transformers`; `None` takes the model's own, which the SDK downloads.
        service_timeout_s: How long one call may go without a result. The SDK retries meanwhile.
    """

    base_model: str = "Qwen/Qwen3-8B"
    rank: int = 32
    learning_rate: float = 4e-5
    loss_fn: str = "importance_sampling"
    max_tokens: int = 512
    tokenizer: str | None = None
    service_timeout_s: float = 600.0


def require_key() -> None:
    """Check for a key, before anything is imported or started.

    Raises:
        OptionError: `$TINKER_API_KEY` is not set.
    """
    if not os.environ.get(KEY_VARIABLE):
        raise OptionError(
            f"{KEY_VARIABLE} is not set, and Tinker needs a key. Make one in the Tinker console, "
            f"then: export {KEY_VARIABLE}=tml-..."
        )


def require_tinker() -> None:
    """Check for a key and the SDK, before anything is imported or started.

    Raises:
        OptionError: `$TINKER_API_KEY` is not set.
        MissingExtraError: `tinker` is not installed.
    """
    require_key()
    if importlib.util.find_spec("tinker") is None:
        raise MissingExtraError.for_extra("Training through Tinker needs tinker.", "train,tinker")


@final
class TinkerPolicy:
    """A model with LoRA weights at Tinker: sampled with the weights of the last `refresh`."""

    def __init__(self, config: TinkerConfig, *, state: str | None = None) -> None:
        """Connect, and create the weights, or load those that `save` stored as `state`.

        Raises:
            ServerError: The service refuses or fails; the message says why.
            OptionError: It has no such model, or the tokenizer cannot be loaded.
            MissingExtraError: `tinker` is not installed.
        """
        require_tinker()
        import tinker

        self._sdk: Any = tinker
        self._config = config
        self._last_warning = _LastWarning()
        logging.getLogger("tinker").addHandler(self._last_warning)
        self._service = tinker.ServiceClient()
        self._check_model()
        self._training: Any
        if state is None:
            self._training = self._call(
                "create the weights",
                lambda: self._service.create_lora_training_client(
                    config.base_model, rank=config.rank, seed=config.seed
                ),
            )
        else:
            self._training = self._call(
                f"load the checkpoint {state}",
                lambda: self._service.create_training_client_from_state_with_optimizer(state),
            )
        self._tokenizer = self._make_tokenizer()
        self._sampler: Any = None
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "success" if kind is None else "errored"
        # A lost service cannot be notified, and the error that ended the run is already raised.
        with contextlib.suppress(Exception):
            self._service.close(status).result(CLOSE_TIMEOUT_S)
        logging.getLogger("tinker").removeHandler(self._last_warning)

    @property
    def is_fake(self) -> bool:
        """Whether it is the model of a test service, whose results are meaningless."""
        return self._config.base_model.startswith("fake/")

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Return the ids of a prompt, as a user message if the model has a chat template."""
        if not self._tokenizer.chat_template:
            return tuple(self._tokenizer.encode(prompt))
        messages = [{"role": "user", "content": prompt}]
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, enable_thinking=False
        )
        return tuple(ids)

    def decode(self, completion: Completion) -> str:
        """Return the text of a completion, without the token that ended it."""
        tokens = list(completion.tokens)
        if tokens and tokens[-1] == self._tokenizer.eos_token_id:
            del tokens[-1]
        return str(self._tokenizer.decode(tokens))

    async def sample(self, prompt: tuple[int, ...], *, temperature: float, seed: int) -> Completion:
        """Let the model answer a prompt.

        Raises:
            ServerError: The service refuses or fails.
        """
        types = self._sdk.types
        params = types.SamplingParams(
            max_tokens=self._config.max_tokens, temperature=temperature, seed=seed
        )
        with self._errors("sample"):
            call = self._sampler.sample_async(types.ModelInput.from_ints(list(prompt)), 1, params)
            reply = await asyncio.wait_for(call, self._config.service_timeout_s)
        (sequence,) = reply.sequences
        if sequence.logprobs is None:
            raise ServerError("Tinker returned no log-probabilities, which training needs.")
        stopped = sequence.stop_reason == "stop"
        return Completion(prompt, tuple(sequence.tokens), tuple(sequence.logprobs), stopped)

    def update(self, examples: Sequence[tuple[Completion, float]]) -> dict[str, float]:
        """Take one optimizer step on completions and their advantages; return its metrics.

        Raises:
            ServerError: The service refuses or fails.
        """
        config = self._config
        data = [self._datum(completion, advantage) for completion, advantage in examples]
        params = self._sdk.types.AdamParams(learning_rate=config.learning_rate)
        with self._errors("train"):
            # Both are submitted before either is awaited, so the service runs them together.
            gradient = self._training.forward_backward(data, config.loss_fn)
            step = self._training.optim_step(params)
            metrics = dict(gradient.result(config.service_timeout_s).metrics)
            metrics |= step.result(config.service_timeout_s).metrics or {}
        # JSON has no NaN and no infinity, which a metric of an unusual batch may be.
        return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}

    def _datum(self, completion: Completion, advantage: float) -> Any:
        """Return the training example of a completion: shifted tokens, zeros for the prompt."""
        types = self._sdk.types
        whole = [*completion.prompt, *completion.tokens]
        zeros = [0.0] * (len(completion.prompt) - 1)
        return types.Datum(
            model_input=types.ModelInput.from_ints(whole[:-1]),
            loss_fn_inputs={
                "target_tokens": np.array(whole[1:], np.int64),
                "logprobs": np.array([*zeros, *completion.logprobs], np.float32),
                "advantages": np.array(
                    [*zeros, *([advantage] * len(completion.tokens))], np.float32
                ),
            },
        )

    def refresh(self) -> None:
        """Sample with the current weights from now on."""
        self._sampler = self._call(
            "refresh the sampling weights", self._training.save_weights_and_get_sampling_client
        )

    def save(self, name: str) -> str:
        """Store the weights and the optimizer's state at Tinker, and return their path."""
        with self._errors("save a checkpoint"):
            saved = self._training.save_state(name, overwrite=True).result(
                self._config.service_timeout_s
            )
        return str(saved.path)

    def _check_model(self) -> None:
        reply = self._call("list its models", self._service.get_server_capabilities)
        known = sorted(model.model_name for model in reply.supported_models if model.model_name)
        name = self._config.base_model
        if name not in known:
            raise OptionError(
                f"Tinker has no model {name!r}.{suggest(name, known)} Use --base-model with "
                f"one of: {', '.join(known)}."
            )

    def _make_tokenizer(self) -> Any:
        name = self._config.tokenizer
        try:
            if name is None:
                return self._training.get_tokenizer()
            module, _, attribute = name.partition(":")
            return getattr(importlib.import_module(module), attribute)()
        except Exception as error:
            what = f"of {self._config.base_model}" if name is None else repr(name)
            raise OptionError(
                f"The tokenizer {what} cannot be loaded: {type(error).__name__}: {error}. Check "
                "the connection it is downloaded over, or name another: --tokenizer MODULE:NAME."
            ) from error

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """Call a function that has no timeout in the SDK, and would retry for minutes."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - the caller raises it
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        with self._errors(what):
            return future.result(self._config.service_timeout_s)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise the SDK's errors as a `ServerError` that says what to do."""
        sdk = self._sdk
        try:
            yield
        except (sdk.TinkerError, TimeoutError, ValueError) as raised:
            # The SDK wraps the status of a result in a ValueError.
            is_wrapped = isinstance(raised.__cause__, sdk.TinkerError)
            error = raised.__cause__ if is_wrapped else raised
            raise ServerError(f"Tinker could not {what}: {self._reason(error)}") from raised

    def _reason(self, error: BaseException | None) -> str:
        sdk = self._sdk
        address = os.environ.get("TINKER_BASE_URL", "the service")
        if isinstance(error, TimeoutError):
            last = self._last_warning.text
            detail = f" Its last message: {last}" if last else ""
            return f"no result from {address} for {self._config.service_timeout_s:g} s.{detail}"
        advice = {
            sdk.AuthenticationError: f"the key in {KEY_VARIABLE} is not valid. Set a valid one.",
            sdk.PermissionDeniedError: f"the key in {KEY_VARIABLE} may not do this.",
            sdk.BillingError: "the account has a billing problem. See the Tinker console.",
            sdk.RateLimitError: "too many requests. Try again later, or use fewer --num-envs.",
            sdk.InternalServerError: "the service failed. Try again later.",
            sdk.APIConnectionError: f"{address} cannot be reached.",
        }
        for kind, text in advice.items():
            if isinstance(error, kind):
                return f"{text} ({error})"
        return f"{type(error).__name__}: {error}"


class _LastWarning(logging.Handler):
    """Keeps the last warning of the SDK, which says why it waits."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
