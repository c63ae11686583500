"""Compiled verification: plain text from a bounded number of graphs, compiled once."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from doubles import all_lengths, bushy, half_right, liar, oracle, random_drafter
from families import build

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding import setup
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compiled import MAX_WIDTHS, Graphs

IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"do_sample": False, "max_new_tokens": 60, "cache_implementation": "static"}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def config(backend="eager", **settings):
    """Whole graphs; dynamo's own "eager" backend traces and guards, but generates no code."""
    from transformers import CompileConfig

    mode = "reduce-overhead" if backend == "inductor" else None
    return CompileConfig(backend=backend, mode=mode, fullgraph=True, **settings)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def run(model, ids=IDS, drafter="auto", gamma="auto", gamma_max=64, **kwargs):
    kwargs = GREEDY | {"compile_config": config()} | kwargs
    arguments = {name: kwargs.pop(name) for name in ("width", "tree") if name in kwargs}
    speculator = Speculator(drafter, gamma, gamma_max=gamma_max, compiled=True, **arguments)
    out = ngramspec.generate(model, ids, speculator=speculator, **kwargs)
    assert speculator.stats.drafter_faults == 0
    return out, speculator.stats


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral sliding", "gemma2 hybrid"])
def test_windows(name):
    """The masks are inputs, one for each type of layers, and layers with windows keep all."""
    model = build(name)
    plain = model.generate(IDS, **GREEDY)
    text = plain[0].tolist()
    for _ in range(2):
        ours, stats = run(model, drafter=all_lengths(text), gamma=4, gamma_max=4)
        assert torch.equal(ours, plain)
        assert stats.accepted > 20
    assert graphs() == 3


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
def test_no_recompilation_after_warm_up(attention):
    model = tiny_llama(num_hidden_layers=1)
    model.set_attn_implementation(attention)
    plain = model.generate(IDS, **GREEDY)
    text = plain[0].tolist()
    for _ in range(2):  # drafts of all lengths: a graph for each width
        assert torch.equal(
            run(model, drafter=all_lengths(text), gamma=10, gamma_max=10)[0],
            plain,
        )
        warm = graphs()
    assert warm == MAX_WIDTHS
    other = torch.randint(3, 97, (1, 10), generator=torch.Generator().manual_seed(0))
    for ids in (IDS, other):
        plain = model.generate(ids, **GREEDY)
        text = plain[0].tolist()
        for drafter in ("none", "auto", liar(text, 97), half_right(text, 97), random_drafter(97)):
            ours, stats = run(model, ids, drafter, gamma=10, gamma_max=10)
            assert torch.equal(ours, plain)
    for length in (3, 40, 90):  # other prompts, in a cache of the same size
        ids = torch.randint(3, 97, (1, length))
        assert torch.equal(run(model, ids, gamma_max=10)[0], model.generate(ids, **GREEDY))
    assert graphs() == warm
    assert stats.drafted > 100


def test_a_fixed_width_is_one_graph_and_no_drafter_moves_a_bit():
    model = tiny_llama(num_hidden_layers=1, hidden_size=64, initializer_range=0.2).to(
        torch.bfloat16
    )
    kept = {"return_dict_in_generate": True, "output_logits": True, "width": 8}
    none, stats = run(model, drafter="none", **kept)
    assert stats.target_calls == 59
    text = none.sequences[0].tolist()
    for drafter in ("auto", "unigram", oracle(text), liar(text, 97), random_drafter(97)):
        ours, _ = run(model, drafter=drafter, **kept)
        assert torch.equal(ours.sequences, none.sequences)
        assert all(torch.equal(a, b) for a, b in zip(ours.logits, none.logits, strict=True))
    assert graphs() == 1


def test_no_step_compiles_so_that_all_are_timed():
    model, widths, timed = tiny_llama(num_hidden_layers=1), [], []
    text = model.generate(IDS, **GREEDY)[0].tolist()

    class Noting(StepCosts):
        def record_time(self, width, seconds, tree=False):
            timed.append(width)
            super().record_time(width, seconds, tree)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "StepCosts", Noting)
        speculator = Speculator(
            all_lengths(text),
            gamma_max=8,
            compiled=True,
            on_step=lambda e: widths.append(e.width),
        )
        for _ in range(2):
            ngramspec.generate(model, IDS, speculator=speculator, compile_config=config(), **GREEDY)
    assert graphs() > 1
    assert len(timed) == len(widths) - 2  # two prefills, in which all is compiled


@pytest.mark.slow
def test_plain_compiled_generate_in_between_costs_nothing():
    model = tiny_llama(num_hidden_layers=1)
    settings = config()
    settings._compile_all_devices = True
    counts = []
    for _ in range(3):
        plain = model.generate(IDS, compile_config=settings, **GREEDY)
        assert torch.equal(run(model, drafter=oracle(plain[0].tolist()), gamma=7)[0], plain)
        counts.append(graphs())
    assert counts[0] == counts[2]


def test_a_small_cache_of_the_user_s_takes_the_widths_that_fit(monkeypatch):
    from transformers import StaticCache

    model = tiny_llama(num_hidden_layers=1)
    plain = model.generate(IDS, **GREEDY)
    widths = []

    class Recording(Graphs):
        def __call__(self, **inputs):
            widths.append(inputs["input_ids"].shape[1])
            return super().__call__(**inputs)

    monkeypatch.setattr("ngramspec.hf_model.compiled.Graphs", Recording)
    kwargs = {"cache_implementation": None, "compile_config": config()}
    for drafter in (oracle(plain[0].tolist()), random_drafter(97), "none"):
        cache = StaticCache(model.config, max_cache_len=69)
        ours, _ = run(model, drafter=drafter, gamma=9, **cache_argument(cache), **kwargs)
        assert torch.equal(ours, plain)
        assert int(cache.get_seq_length()) == 69
    assert set(widths) <= {1, 2, 4, 10}


def test_trees_run_compiled():
    model = tiny_llama(num_hidden_layers=1)
    plain = model.generate(IDS, **GREEDY)
    for seed in range(2):
        ours, stats = run(model, drafter=bushy(plain[0].tolist(), 97, seed), gamma=7, tree=7)
        assert torch.equal(ours, plain)
        assert not stats.limits
        assert stats.accepted > 20
    assert graphs() == MAX_WIDTHS


def test_batches_in_lock_step_run_compiled():
    model = tiny_llama(num_hidden_layers=1)
    ids = torch.cat((torch.cat((torch.zeros_like(IDS[:, :3]), IDS[:, 3:]), dim=1), IDS))
    mask = (ids != 0).long()
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    ours, _ = run(model, ids, "auto", 3, attention_mask=mask)
    assert torch.equal(ours, plain)


def test_by_default_it_is_compiled_where_plain_generate_is():
    model = tiny_llama(num_hidden_layers=1)
    plain = model.generate(IDS, **GREEDY)
    for compiled, everywhere, count in (
        (None, False, 0),
        (None, True, 1),
        (False, True, 0),
        (True, False, 1),
    ):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        settings = config()
        settings._compile_all_devices = everywhere  # stands for a GPU
        speculator = Speculator("none", compiled=compiled)
        kwargs = GREEDY | {"compile_config": settings, "custom_generate": speculator}
        assert torch.equal(model.generate(IDS, **kwargs, disable_compile=True), plain)
        assert graphs() == 0
        assert torch.equal(model.generate(IDS, **kwargs), plain)
        assert graphs() == count


def test_what_cannot_be_compiled_is_refused_by_name():
    message = "compiled=True is not supported with a dynamic cache; use cache_impl"
    with pytest.raises(UnsupportedError, match=message):
        run(build("llama"), cache_implementation=None)


@pytest.mark.slow
def test_with_inductor():
    model = tiny_llama(num_hidden_layers=1)
    plain = model.generate(IDS, **GREEDY)
    text = plain[0].tolist()
    kwargs = {"compile_config": config("inductor"), "gamma_max": 3}
    for drafter in (
        all_lengths(text),
        half_right(text, 97),
        random_drafter(97),
        "none",
    ):
        assert torch.equal(run(model, drafter=drafter, **kwargs)[0], plain)
    assert graphs() == 3
