"""The time of a turn in TRL: its own environment loop, and `TRLRollouts`, in one run.

    benchmarks/run trl                             64 rollouts of a tool that takes 1 s
    benchmarks/run trl --rollouts 16 --seconds 0.1

A rollout is one call of the tool. The model is tiny and its replies are fixed, so that the time is
that of the tool. TRL runs the tools of a batch one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the result as JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run trl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts of a batch")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the tool takes")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.rollouts, options.seconds)))
    return 0


def measure(rollouts: int, seconds: float) -> dict[str, Any]:
    """Return the seconds of a turn, both ways."""
    import datasets
    import trl
    from byte_tokenizers import byte_tokenizer
    from environments.replies import SlowTool

    from envweave.trainers.trl import TRLRollouts
    from envweave.trainers.trl_tools import trl_environment

    tokenizer = byte_tokenizer()
    template = Path(trl.__file__).parent / "chat_templates/qwen3.jinja"
    tokenizer.chat_template = template.read_text()
    rows = [{"prompt": [{"role": "user", "content": "Go."}]}] * rollouts
    dataset = datasets.Dataset.from_list(rows)
    own = _trainer(
        tokenizer, dataset, environment_factory=trl_environment(SlowTool, seconds=seconds)
    )
    own_s = _seconds(own, rows)
    with TRLRollouts(SlowTool, seconds=seconds, size=rollouts, max_steps=1) as played:
        ours = _trainer(tokenizer, dataset, reward_funcs=played.reward, rollout_func=played)
        ours_s = _seconds(ours, rows)
    return {
        "trl": trl.__version__,
        "rollouts": rollouts,
        "tool_s": seconds,
        "environment_factory_s": round(own_s, 2),
        "rollout_func_s": round(ours_s, 2),
        "ratio": round(own_s / ours_s, 1),
    }


def _trainer(tokenizer: Any, dataset: Any, **options: Any) -> Any:
    import torch
    from trl import GRPOConfig, GRPOTrainer

    from envweave.examples.training.tiny_language_model import tiny_language_model

    call = '<tool_call>\n{"name": "guess", "arguments": {"number": 3}}\n</tool_call><|im_end|>'
    reply = tokenizer(call, add_special_tokens=False)["input_ids"]

    def generate(input_ids: Any, **_: Any) -> Any:
        return torch.cat([input_ids, torch.tensor([reply] * len(input_ids))], 1)

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=len(dataset),
        num_generations=len(dataset) // 2, max_completion_length=400, max_tool_calling_iterations=1,
        report_to=[], save_strategy="no", beta=0.0, use_cpu=True, bf16=False,
    )  # fmt: skip
    model = tiny_language_model(tokenizer, max_length=2048)
    trainer = GRPOTrainer(
        model, args=config, train_dataset=dataset, processing_class=tokenizer, **options
    )
    trainer.model.generate = generate
    trainer.model.train()
    return trainer


def _seconds(trainer: Any, rows: list[dict[str, Any]]) -> float:
    began_s = time.perf_counter()
    trainer._generate_and_score_completions(rows)  # noqa: SLF001 - one turn, and no update
    return time.perf_counter() - began_s
