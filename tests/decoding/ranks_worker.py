"""One process of two that decode together, started by torchrun; writes what it saw as JSON.

Usage: ranks_worker.py CASE MODEL_DIR OUT_DIR
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from doubles import oracle, random_drafter
from transformers import AutoModelForCausalLM

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_of

RANK = int(os.environ["RANK"])
VOCAB = 96
PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
BATCH = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [0, 0, 0, 8, 9, 4, 8, 9, 4, 8]])
GREEDY = {"do_sample": False, "max_new_tokens": 100, "pad_token_id": 0}


def tensor_parallel(folder: str) -> dict[str, object]:
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
    plain = model.generate(PROMPT, **GREEDY)
    text = plain[0].tolist()
    batch = {"attention_mask": (BATCH != 0).long()} | GREEDY
    mine = {  # on each rank another drafter, which asks for other lengths
        "right on rank 0": [Speculator(oracle(text), 9), Speculator(random_drafter(VOCAB), 3)],
        "right on rank 1": [Speculator(random_drafter(VOCAB), 5), Speculator(oracle(text), 60)],
        "long": [Speculator(oracle(text), gamma=90, gamma_max=200), Speculator("none")],
        "none on rank 0": [Speculator("none"), Speculator(oracle(text), 9)],
    }
    seen: dict[str, object] = {"plain": text, "shard": list(shape_of_one_weight(model))}
    for name, speculators in mine.items():
        speculator = speculators[RANK]
        seen[name] = ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY)[0].tolist()
        seen[f"{name}: calls"] = speculator.stats.target_calls
    seen["plain batch"] = model.generate(BATCH, **batch).tolist()
    speculator = Speculator(random_drafter(VOCAB, RANK), 4 + RANK)
    seen["batch"] = ngramspec.generate(model, BATCH, speculator=speculator, **batch).tolist()
    for name, more in (("scores", {"output_logits": True}), ("beams", {"num_beams": 2})):
        asked = batch | more | {"return_dict_in_generate": True}
        seen[f"plain {name}"] = model.generate(BATCH, **asked).sequences.tolist()
        found = ngramspec.generate(model, BATCH, speculator=Speculator(), **asked)
        seen[name] = found.sequences.tolist()
    for name in ("plain sampled", "sampled"):
        custom = Speculator(["auto", "copy"][RANK]) if name == "sampled" else None
        torch.manual_seed(3)
        sampled = GREEDY | {"do_sample": True}
        seen[name] = model.generate(PROMPT, custom_generate=custom, **sampled)[0].tolist()
    return seen


def shape_of_one_weight(model: torch.nn.Module) -> torch.Size:
    weight = model.model.layers[0].mlp.up_proj.weight
    return (weight.to_local() if hasattr(weight, "to_local") else weight).shape


def synced(folder: str) -> dict[str, object]:
    """Weights sharded over data: each rank has its own text, of its own length."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = BATCH[[RANK], 3 * RANK :]
    kwargs = GREEDY | {"max_new_tokens": [12, 40][RANK]}
    seen: dict[str, object] = {"plain": model.generate(prompt, **kwargs)[0].tolist()}
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    for name, asked in (("asked for", {"synced_gpus": True}), ("found out", {})):
        speculator = Speculator(gamma=3 + 4 * RANK)
        kwargs |= {"return_dict_in_generate": True}
        out = ngramspec.generate(model, prompt, speculator=speculator, **kwargs, **asked)
        seen[name] = out.sequences[0].tolist()
        seen[f"{name}: cache"] = cache_of(out).get_seq_length()
        torch.distributed.barrier()
    try:
        ngramspec.generate(model, prompt, cache_implementation="static", **kwargs)
    except UnsupportedError as error:
        seen["static"] = str(error)
    return seen


if __name__ == "__main__":
    case, folder, out = sys.argv[1:]
    seen = {"tp": tensor_parallel, "synced": synced}[case](folder)
    Path(out, f"{RANK}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
