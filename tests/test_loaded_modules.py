"""How much of the package a greedy call loads."""

from __future__ import annotations

import subprocess
import sys

MAX_MODULES = 80
MAX_LINES = 13_000
GREEDY_CALL = """
import sys
import torch
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
from ngramspec import Speculator

config = LlamaConfig(
    vocab_size=97, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
)
LlamaForCausalLM(config).eval().generate(
    torch.arange(8)[None], custom_generate=Speculator(), max_new_tokens=16, do_sample=False
)
files = {
    module.__file__
    for name, module in list(sys.modules.items())
    if name.split(".")[0] == "ngramspec" and str(module.__file__).endswith(".py")
}
print(len(files), sum(len(Path(file).read_text().splitlines()) for file in files))
"""


def test_a_greedy_call_loads_a_limited_part_of_the_package():
    ran = subprocess.run(
        [sys.executable, "-c", GREEDY_CALL], capture_output=True, text=True, check=True
    )
    modules, lines = map(int, ran.stdout.split())
    assert 10 < modules <= MAX_MODULES
    assert lines <= MAX_LINES
