"""Attention without copies for every query head, in our own forwards only."""

from __future__ import annotations

import inspect
import pickle
import threading
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_llama
from doubles import oracle
from plain_text import PROMPT as IDS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import ngramspec
from ngramspec import Speculator
from ngramspec.hf_model import attention as attention_module
from ngramspec.hf_model.attention import _folded, grouped, in_place
from ngramspec.hf_model.compat import kernels

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_it_was():
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    yield
    AttentionInterface.register("sdpa", before)


@pytest.fixture
def copies(monkeypatch):
    """The numbers of query heads for each of which keys or values were copied."""
    made = []

    def noting(states, count):
        made.append(count)
        return repeat_kv(states, count)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", noting)
    return made


def states(batch, heads, of_keys, n, length, dtype, size=64):
    make = torch.Generator().manual_seed(n * length)
    query = torch.randn(batch, heads, n, size, generator=make).to(dtype)
    key, value = torch.randn(2, batch, of_keys, length, size, generator=make).to(dtype)
    return query, key, value


def masks(n, length):
    chain = torch.ones(n, length, dtype=torch.bool).tril(length - n)
    tree = chain & (torch.rand(n, length, generator=torch.Generator().manual_seed(1)) > 0.4)
    tree[:, 0] = True
    return chain, tree


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(9, 3), (8, 1), (4, 4)])
def test_the_same_as_with_copies(copies, dtype, heads):
    # Some processors round a wider product differently.
    close = {"atol": 2e-6 if dtype == torch.float32 else 2e-3, "rtol": 10 * torch.finfo(dtype).eps}
    attend, module = grouped(sdpa_attention_forward), SimpleNamespace(is_causal=True)
    module.num_key_value_groups = heads[0] // heads[1]
    for batch in (1, 3):
        for n in (2, 5, 33):
            for length in (n, 300):
                given = states(batch, *heads, n, length, dtype)
                for mask in masks(n, length):
                    as_float = torch.zeros(n, length, dtype=dtype).masked_fill(~mask, -torch.inf)
                    by_head = mask[None, None].expand(batch, heads[0], -1, -1)
                    as_float = as_float[None, None].expand(batch, 1, -1, -1)
                    for each in (mask[None, None], as_float, by_head):
                        theirs, _ = sdpa_attention_forward(module, *given, each, scaling=0.2)
                        made = len(copies)
                        with in_place(CPU):
                            ours, weights = attend(module, *given, each, scaling=0.2)
                        assert len(copies) == made
                        assert weights is None
                        torch.testing.assert_close(ours, theirs, **close)
                        assert ours.stride() == theirs.stride()


def test_our_forwards_copy_nothing_and_those_of_others_are_as_they_were(copies):
    model = tiny_llama()
    plain = model.generate(IDS, max_new_tokens=40, do_sample=False)
    lookup = {"max_new_tokens": 40, "do_sample": False, "prompt_lookup_num_tokens": 4}
    assert torch.equal(model.generate(IDS, **lookup), plain)
    made = len(copies)
    assert made > 0
    speculator = Speculator(oracle(plain[0].tolist()), 4)
    ours = ngramspec.generate(model, IDS, speculator=speculator, max_new_tokens=40, do_sample=False)
    assert torch.equal(ours, plain)
    assert speculator.stats.drafted > 20
    assert len(copies) == made
    assert torch.equal(model.generate(IDS, **lookup), plain)
    assert len(copies) == 2 * made


def test_only_the_thread_that_is_inside_and_knows_the_function(copies):
    def mine(*args, **kwargs):
        return sdpa_attention_forward(*args, **kwargs)

    model = tiny_llama(num_hidden_layers=1)
    block = {"input_ids": IDS, "attention_mask": (IDS != 7).long()}
    with torch.inference_mode(), in_place(CPU):
        model(**block)
        assert not copies
        other = threading.Thread(target=lambda: model(**block))
        other.start()
        other.join()
        assert copies == [2, 2]
        with in_place(torch.device("meta")):  # kernels that are not known
            pass
    AttentionInterface.register("sdpa", mine)
    with in_place(CPU):
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is mine
    assert not attention_module.available()


def test_what_it_does_not_know_is_the_original_s():
    seen = []

    def original(module, query, key, value, attention_mask, position_bias=None, **kwargs):
        seen.append(kwargs | {"position_bias": position_bias})
        return query, None

    attend, module = grouped(original), SimpleNamespace(num_key_value_groups=3)
    query, key, value = states(1, 9, 3, 4, 20, torch.float32)
    mask = masks(4, 20)[0][None, None]
    with in_place(CPU):
        attend(module, query, key, value, mask, output_attentions=False, softcap=None)
        attend(module, query[:, :, :1], key, value, mask[:, :, :1], dropout=0.0)
        assert not seen
        attend(module, query, key, value, mask, softcap=30.0)
        attend(module, query, key, value, mask, output_attentions=True)
        attend(module, query, key, value, mask, position_bias=torch.zeros(1))
        attend(module, query, key, value, None)
        attend(module, query, key, value, mask, dropout=0.1)
        attend(module, query[:, :6], key, value, mask)
    assert len(seen) == 6
    attend(module, query, key, value, mask)
    assert len(seen) == 7


def test_heads_are_folded_as_far_as_it_leaves_no_thread_idle():
    # (key heads, query heads of each, positions, threads)
    assert _folded(3, 3, 8, 1) == 3
    assert _folded(3, 3, 8, 2) == 3
    assert _folded(3, 3, 8, 16) == 1
    assert _folded(8, 4, 8, 2) == 4
    assert _folded(8, 4, 8, 16) == 2
    assert _folded(8 * 4, 4, 8, 16) == 4  # four rows
    assert _folded(8, 4, 32, 2) == 1  # every head is a block already


def test_what_is_remembered_of_folded_heads_is_bounded():
    for positions in range(1, 3000):
        _folded(8, 4, positions, 2)
    assert 0 < _folded.cache_info().currsize <= 1024


class Operators(TorchDispatchMode):
    """Names of the operators that are called inside."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.called.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


def test_the_mask_of_a_chain_is_skipped_where_flash_attention_takes_it(monkeypatch):
    skipped, module = [], SimpleNamespace(num_key_value_groups=3)

    def attended(query, key, value, mask, scale):
        skipped.append(mask is None)
        return torch.empty_like(query)

    monkeypatch.setattr(kernels, "skips_mask", lambda *_: True)
    monkeypatch.setattr(kernels, "attend", attended)
    attend = grouped(sdpa_attention_forward)
    query, key, value = (each.to("meta") for each in states(1, 9, 3, 4, 20, torch.float32))
    mask = masks(4, 20)[0][None, None].to("meta")
    for chain, given in ((mask, mask), (mask, mask.clone()), (None, mask)):
        with in_place(torch.device("cuda"), chain=chain):
            out, _ = attend(module, query, key, value, given, scaling=0.2)
        assert out.shape == (1, 4, 9, query.shape[3])
    assert skipped == [True, False, False]


@pytest.mark.parametrize("allowed", [True, False])
def test_on_cuda_flash_and_efficient_attention_are_called_unless_excluded(monkeypatch, allowed):
    for name in ("can_use_flash_attention", "can_use_efficient_attention"):
        monkeypatch.setattr(torch.backends.cuda, name, lambda _: allowed)
    with FakeTensorMode(), Operators() as operators:
        query = torch.empty(2, 8, 5, 64, dtype=torch.bfloat16, device="cuda")
        key = value = torch.empty(2, 2, 70, 64, dtype=torch.bfloat16, device="cuda")
        mask = torch.empty_strided(
            (1, 1, 20, 70), (1600, 1600, 80, 1), dtype=torch.bfloat16, device="cuda"
        )
        assert kernels.skips_mask(query, key, value) == allowed
        folded = query.reshape(2, 2, 20, 64)
        found = kernels.attend(folded, key, value, mask, 0.125)
        assert (None if found is None else found.shape) == (folded.shape if allowed else None)
        if allowed:
            assert kernels.attend(query, key, value, None, 0.125).shape == query.shape
    found = [each for each in operators.called if "attention" in each]
    if allowed:
        assert found[::-1] == [
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
        ]
    else:
        assert not {"_scaled_dot_product_efficient_attention"} & set(found)


def test_a_forward_s_mask_is_made_once_for_all_layers_and_not_kept(monkeypatch):
    model = tiny_llama(num_hidden_layers=3)
    made = []

    def attention(*args, attn_mask=None, **kwargs):
        made.append(attn_mask)
        return scaled_dot_product_attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(attention_module, "scaled_dot_product_attention", attention)
    with torch.inference_mode():
        expected = model(input_ids=IDS, attention_mask=(IDS != 7).long()).logits
        assert not made
        with in_place(CPU):
            for hidden in (7, 8):
                mask = torch.ne(IDS, hidden).long()
                logits = model(input_ids=IDS, attention_mask=mask).logits
                assert torch.allclose(logits, expected, atol=1e-5) == (hidden == 7)
    first = [next(at for at, one in enumerate(made) if one is each) for each in made]
    assert first == [0, 0, 0, 3, 3, 3]
    assert all(each.dtype == torch.float32 for each in made)
    assert attention_module._thread.masks == {}


def test_the_attention_is_found_by_its_name_and_by_its_function():
    """Also in the middle of a call, by code that compares the name or unwraps the function."""
    model = tiny_llama(num_hidden_layers=1)
    seen = []

    def look(*_):
        registered = ALL_ATTENTION_FUNCTIONS.get_interface(model.config._attn_implementation, None)
        seen.append((repr(model.config._attn_implementation), inspect.unwrap(registered)))
        assert registered.__qualname__ == sdpa_attention_forward.__qualname__

    model.model.layers[0].self_attn.register_forward_hook(look)
    speculator = Speculator("copy", 4)
    ngramspec.generate(model, IDS, speculator=speculator, max_new_tokens=30, do_sample=False)
    assert speculator.stats.drafted
    assert attention_module.available()
    assert {*seen} == {(repr("sdpa"), sdpa_attention_forward)}
    assert pickle.loads(pickle.dumps(model.config))._attn_implementation == "sdpa"
