"""The parity report has no wrong cell, and says by name what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
import transformers

from benchmarks import parity, tiny
from ngramspec.hf_model.compat.models import BY_SLOT, ONE_AT_A_TIME
from ngramspec.hf_model.compat.package import PLACES_TOKENS, has

EXPERT_PARTS = ("gate", "router", "router_gate")


@pytest.mark.slow  # the fuzzer compares more of them
@pytest.mark.filterwarnings("ignore")
def test_families_with_caches_processors_and_batches():
    cells = list(parity.matrix(every=13))
    assert {cell.outcome for cell in cells} == {"identical"}
    parts = zip(*(cell.what.split(", ") for cell in cells), strict=True)
    counts = [len(parity.CACHES), len(parity.PROCESSORS), len(parity.ROWS)]
    assert [len(set(part)) for part in parts] == counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_families_with_every_cache_processor_and_batch():
    assert [cell.outcome for cell in parity.matrix()] == ["identical"] * (6 * 2 * 6 * 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_class_with_experts_is_built_with_a_layer_of_them():
    """Else their routers would not be compared."""
    dense = []
    for kind in parity.classes():
        with suppress(Exception), torch.device("meta"):
            if "expert" not in str(kind.config_class().to_dict()):
                continue
            decoder = kind(tiny.small(kind.config_class)).get_decoder()
            names = {name.rpartition(".")[2] for name, _ in decoder.named_modules()}
            if not any("expert" in name or name in EXPERT_PARTS for name in names):
                dense.append(kind.__name__)
    assert dense == []


OWN_GENERATE = "it overrides generate, or has none"
REFUSED = ONE_AT_A_TIME | {
    "OpenAIGPTLMHeadModel": "keeps no key-value cache",
    "MusicgenForCausalLM": OWN_GENERATE,
    "SeamlessM4TForTextToText": OWN_GENERATE,
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"FlaubertWithLMHeadModel"}))  # too large
def test_models_that_cannot_be_sped_up_are_refused_with_the_reason(name):
    first = next(parity.try_class(getattr(transformers, name)))
    assert first.outcome == "refused"
    assert REFUSED[name] in first.detail


@pytest.mark.parametrize("name", sorted(BY_SLOT - {"GlmImageForConditionalGeneration"}))  # an image
def test_models_that_go_by_slots_keep_rows_together(name):
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    cells = [*parity.try_class(getattr(transformers, name))]
    too_old = name == "GitForCausalLM" and not has(PLACES_TOKENS)
    outcome = "refused" if too_old else "identical"
    assert {cell.what: cell.outcome for cell in cells} == {"batch 1": outcome, "batch 2": outcome}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_class_of_the_installed_transformers():
    cells = list(parity.walk())
    assert not [cell for cell in cells if cell.outcome == "wrong"]
    assert {cell.model for cell in cells} == {kind.__name__ for kind in parity.classes()}
    assert {cell.model for cell in cells if cell.outcome == "not run"} == set(parity.NOT_ALONE)
    assert all(cell.detail for cell in cells if cell.outcome != "identical")
    assert sum(cell.outcome == "identical" for cell in cells) > 300
