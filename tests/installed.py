"""Checks an installed package: it drafts, and greedy text is plain generate's.

``make dist`` and the workflow of the wheels run it as a script, in an environment of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ngramspec

CLONE = Path(__file__).parents[1]
assert Path(ngramspec.__file__).parent != CLONE / "ngramspec", "the clone's package was imported"

session = ngramspec.build_drafter("auto").start(np.array([5, 6, 7, 8, 5, 6], np.int32))
assert session.propose(2).tokens.tolist() == [7, 8]

torch.manual_seed(0)
sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4)).eval()
call = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
prompt = torch.tensor([[5, 6, 7, 8, 9] * 4])
speculator = ngramspec.Speculator(gamma=4)  # a fixed length: drafts whatever they cost here
text = ngramspec.generate(model, prompt, speculator=speculator, **call)
assert text.equal(model.generate(prompt, **call)), "the text differs from plain generate's"
assert speculator.stats.accepted > 0
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}: {speculator.stats}")
