"""The parity report has no wrong cell, and says by name what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from benchmarks import parity, tiny
from ngramspec.hf_model.compat.names import BY_SLOT, ONE_AT_A_TIME, PLACES_TOKENS, has

EXPERT_PARTS = ("gate", "router", "router_gate")


def check_families(cells):
    assert {cell.outcome for cell in cells} == {"identical"}


@pytest.mark.filterwarnings("ignore")
def test_families_with_caches_processors_and_batches():
    cells = list(parity.matrix(every=5))
    check_families(cells)
    whats = {tuple(cell.what.split(", ")) for cell in cells}
    for part, count in enumerate((len(parity.CACHES), len(parity.PROCESSORS), len(parity.ROWS))):
        assert len({what[part] for what in whats}) == count
    assert len(whats) == 36  # every combination, in some family


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_families_with_every_cache_processor_and_batch():
    cells = list(parity.matrix())
    assert len(cells) == 6 * 2 * 6 * 3
    check_families(cells)


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


def test_models_that_take_one_token_at_a_time_are_refused_with_the_reason():
    from transformers import (
        BltForCausalLM,
        FSMTForConditionalGeneration,
        MoshiForCausalLM,
        OpenAIGPTLMHeadModel,
        XLMWithLMHeadModel,
    )

    kinds = (BltForCausalLM, FSMTForConditionalGeneration, MoshiForCausalLM, XLMWithLMHeadModel)
    for kind in kinds:
        (first, *_) = parity.try_class(kind)
        assert first.outcome == "refused"
        assert ONE_AT_A_TIME[kind.__name__] in first.detail
    (first, *_) = parity.try_class(OpenAIGPTLMHeadModel)
    assert "keeps no key-value cache" in first.detail


@pytest.mark.parametrize("name", sorted(BY_SLOT - {"GlmImageForConditionalGeneration"}))  # an image
def test_models_that_go_by_slots_keep_rows_together(name):
    import transformers

    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    cells = [*parity.try_class(getattr(transformers, name))]
    too_old = name == "GitForCausalLM" and not has(PLACES_TOKENS)
    outcome = "refused" if too_old else "identical"
    assert [(cell.what, cell.outcome) for cell in cells] == [
        ("batch 1", outcome),
        ("batch 2", outcome),
    ]


def test_classes_that_override_generate_are_refused():
    from transformers import MusicgenForCausalLM, SeamlessM4TForTextToText

    for kind in (MusicgenForCausalLM, SeamlessM4TForTextToText):
        (cell,) = parity.try_class(kind)
        assert (cell.outcome, cell.detail) == ("refused", "it overrides generate, or has none")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_class_of_the_installed_transformers():
    cells = list(parity.walk())
    assert not [cell for cell in cells if cell.outcome == "wrong"]
    assert {cell.model for cell in cells} == {kind.__name__ for kind in parity.classes()}
    assert {cell.model for cell in cells if cell.outcome == "not run"} == set(parity.NOT_ALONE)
    assert all(cell.detail for cell in cells if cell.outcome != "identical")
    assert sum(cell.outcome == "identical" for cell in cells) > 300
