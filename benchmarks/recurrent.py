"""A hybrid of attention and recurrent layers with random weights, forced to recorded text.

Its computation is that of a real model. The results are the speedup of whole calls over the
baseline, and the bytes of the copies of its states, compared with the states and the model.

    python -m benchmarks recurrent --traces TRACES --groups edit answer --json OUT
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness import add_json, write
from ngramspec.cli.options import add_count, add_dtype
from ngramspec.hf_model.cache.recurrent_state import Checkpoint
from ngramspec.measure.configurations import Caller, Configuration
from ngramspec.measure.forced import POSITIONS_AFTER_TEXT, forced_model
from ngramspec.measure.turns import PLAIN, take_turns

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3-next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            "hidden_size": 640,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 80,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "intermediate_size": 1792,
            "num_experts": 0,
            "mlp_only_layers": list(range(16)),
        },
    ),
    "granite": (
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            "hidden_size": 640,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "intermediate_size": 1792,
            "shared_intermediate_size": 1792,
            "num_local_experts": 0,
            "layer_types": (["mamba"] * 3 + ["attention"]) * 4,
            "mamba_n_heads": 20,
            "mamba_d_head": 64,
            "mamba_d_state": 64,
        },
    ),
}
COMPARED = (
    Configuration(PLAIN),
    Configuration("ngramspec", speculator={}),
    Configuration("gamma 5", speculator={"gamma": 5}),
)


def build(family: str, dtype: torch.dtype) -> Any:
    """The model of a family, with random weights and a vocabulary of 49152 tokens."""
    import transformers

    kind, config, sizes = FAMILIES[family]
    torch.manual_seed(0)
    made = getattr(transformers, config)(vocab_size=49152, tie_word_embeddings=True, **sizes)
    model = getattr(transformers, kind)(made).to(dtype).eval()
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    return model


@torch.inference_mode()
def checkpoint_bytes(model: Any, prompt: list[int]) -> int:
    """Bytes of the copies of all recurrent states after a prompt."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1)
    checkpoint = Checkpoint([layer for layer in cache.layers if hasattr(layer, "conv_states")])
    checkpoint.save()
    return checkpoint.nbytes


def read(path: Path, group: str, count: int, new: int) -> list[tuple[list[int], list[int]]]:
    """Prompts of at most 400 tokens, and their recorded outputs of at least ``new``."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if line["group"] == group and len(line["prompt"]) <= 400]
    long = [line for line in mine if len(line["output"]) >= new][:count]
    return [(line["prompt"], line["output"][:new]) for line in long]


def measure(model: Any, texts: list[tuple[list[int], list[int]]], new: int, repeats: int) -> Any:
    """Every call; the text is the recording's in all of them."""
    calls, caller = [], Caller(model)
    capacity = max(len(prompt) + len(said) for prompt, said in texts) + POSITIONS_AFTER_TEXT
    with forced_model(model, capacity) as set_text:
        for at, (prompt, said) in enumerate(texts):
            set_text([*prompt, *said])
            turns = take_turns(
                {each.name: partial(caller.call, each, prompt, new) for each in COMPARED}, repeats
            )
            for name, outcomes in turns.results.items():
                for repeat, outcome in enumerate(outcomes, 1):
                    assert outcome.tokens == said
                    each = {"way": name, "prompt": at, "repeat": repeat}
                    each |= {"seconds": outcome.seconds, "tokens_per_call": outcome.tokens_per_call}
                    calls.append(each)
    return calls


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--groups", nargs="+", default=["edit", "answer"])
    parser.add_argument("--family", choices=[*FAMILIES], default="qwen3-next")
    add_dtype(parser)
    add_count(parser, "--prompts", 3, "recorded prompts")
    add_count(parser, "--new", 48, "new tokens of each call")
    add_count(parser, "--repeats", 2, "timed calls of each configuration")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    model = build(arguments.family, getattr(torch, arguments.dtype))
    groups = {group: measure_group(model, group, arguments) for group in arguments.groups}
    for group, found in groups.items():
        print(group, json.dumps({name: found[name] for name in found if name != "calls"}, indent=1))
    write(arguments, {"groups": groups})
    return 0


def measure_group(model: Any, group: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The sizes, and the medians of each configuration on the texts of one group."""
    texts = read(arguments.traces, group, arguments.prompts, arguments.new)
    calls = measure(model, texts, arguments.new, arguments.repeats)
    seconds = {(each["way"], each["prompt"], each["repeat"]): each["seconds"] for each in calls}
    found: dict[str, Any] = {
        "family": arguments.family,
        "parameters": sum(each.numel() for each in model.parameters()),
        "model_bytes": sum(each.nbytes for each in model.parameters()),
        "checkpoint_bytes": checkpoint_bytes(model, texts[0][0]),
    }
    for configuration in COMPARED:
        of_way = [each for each in calls if each["way"] == configuration.name]
        ratios = [
            seconds[PLAIN, each["prompt"], each["repeat"]] / each["seconds"] for each in of_way
        ]
        per_call = median(each["tokens_per_call"] for each in of_way)
        found[configuration.name] = {"to_plain": median(ratios), "tokens_per_call": per_call}
    return found | {"calls": calls}
