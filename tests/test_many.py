"""Many prompts: each output is what ``generate`` gives for its prompt alone, and rows stay full."""

from __future__ import annotations

from itertools import chain, count, repeat

import numpy as np
import pytest
import tiny_tokenizers
import torch
from caches_made import made_caches
from conftest import tiny_llama
from doubles import half_right
from families import CAUSAL, VOCAB, build

import ngramspec
from ngramspec import SharedStore, Speculator, generate_many, many
from ngramspec.decoding.joint import JointSteps, OpenGeneration
from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.hf_model.joint import JointForward

GREEDY = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": [3, 8], "pad_token_id": 0}
SAMPLED = GREEDY | {"do_sample": True, "temperature": 0.9}


def made_prompts(number=12, longest=60):
    rng = np.random.default_rng(0)
    return [
        torch.from_numpy(rng.integers(9, 90, rng.integers(2, longest)))[None] for _ in range(number)
    ]


PROMPTS = made_prompts()


def same(model, found, prompts=PROMPTS, **settings):
    """Whether the outputs are those of separate calls."""
    assert sorted(found) == [*range(len(prompts))]
    return all(
        torch.equal(found[at], model.generate(each, **settings)) for at, each in enumerate(prompts)
    )


@pytest.mark.parametrize("rows", [1, 3, "auto"])
@pytest.mark.parametrize("drafter", ["auto", "none"])
def test_texts_are_those_of_each_alone(tiny, rows, drafter):
    found = dict(generate_many(tiny, PROMPTS, rows=rows, speculator=Speculator(drafter), **GREEDY))
    assert same(tiny, found, **GREEDY)


def test_rows_are_refilled_and_prompts_are_read_when_a_row_is_free(tiny, monkeypatch):
    sizes, read, yielded = [], [], []
    run = JointForward.run
    monkeypatch.setattr(
        JointForward, "run", lambda self, *args: sizes.append(len(self._shares)) or run(self, *args)
    )

    def prompts():
        for each in PROMPTS:
            assert len(read) - len(yielded) < 4
            read.append(each)
            yield each

    settings = GREEDY | {"eos_token_id": None}
    for index, _ in generate_many(
        tiny, prompts(), rows=4, speculator=Speculator("none"), **settings
    ):
        yielded.append(index)
    assert len(yielded) == len(PROMPTS)
    full = sizes.count(4)
    assert full > 0.9 * len(sizes) - 24  # all but the last answers


@pytest.mark.every(6, 2)
@pytest.mark.parametrize("name", CAUSAL)
def test_every_model_reads_prompts_in_pieces(name, monkeypatch):
    monkeypatch.setattr(many, "CHUNK", 5)
    model, prompts = build(name), [each[:, :24] % (VOCAB - 1) + 1 for each in PROMPTS[:5]]
    settings = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
    for inference in (False, True):
        with torch.inference_mode(inference):
            assert same(
                model, dict(generate_many(model, prompts, rows=3, **settings)), prompts, **settings
            )


def test_prompts_are_read_in_the_steps_of_others(tiny, monkeypatch):
    alone, read = [], []
    step, run = OpenGeneration.step, JointForward.run
    monkeypatch.setattr(OpenGeneration, "step", lambda self: alone.append(1) or step(self))

    def joint(self, *args):
        read.append([each.ids.shape[1] for each in self._all[: -len(self._shares)]])
        return run(self, *args)

    monkeypatch.setattr(JointForward, "run", joint)
    settings = GREEDY | {"eos_token_id": None}
    list(generate_many(tiny, PROMPTS, rows=4, speculator=Speculator("none"), **settings))
    assert sum(map(sum, read)) == sum(each.shape[1] - 1 for each in PROMPTS[1:])
    assert max(map(len, read)) == 3
    assert len(alone) < 4  # the first prompt, and the last text's last tokens


def test_memory_limits_the_rows(tiny, monkeypatch):
    run, sizes = JointForward.run, []
    monkeypatch.setattr(
        JointForward, "run", lambda self, *args: sizes.append(len(self._shares)) or run(self, *args)
    )
    for limit, most in ((0, []), (1 << 30, [12])):
        found = dict(generate_many(tiny, PROMPTS, rows=12, cache_bytes=limit, **GREEDY))
        assert same(tiny, found, **GREEDY)
        assert sorted({*sizes})[-1:] == most


def test_auto_rows_do_not_become_fewer(tiny, monkeypatch):
    estimates = chain([9], repeat(2))
    monkeypatch.setattr(JointSteps, "worthwhile_rows", lambda self, most: next(estimates))
    run, sizes = JointForward.run, []
    monkeypatch.setattr(
        JointForward, "run", lambda self, *args: sizes.append(len(self._shares)) or run(self, *args)
    )
    settings = GREEDY | {"eos_token_id": None}
    prompts = PROMPTS * 3
    found = dict(generate_many(tiny, prompts, speculator=Speculator("none"), **settings))
    assert same(tiny, found, prompts, **settings)
    assert max(sizes) == 9
    assert sizes.count(9) > len(sizes) / 2


def test_greedy_calls_draw_nothing_and_none_is_passed_on(tiny):
    settings = GREEDY | {"eos_token_id": None}
    ends = tiny_llama(eos_token_id=list(range(9, 60)))
    before = torch.get_rng_state()
    assert same(ends, dict(generate_many(ends, PROMPTS, rows=4, **settings)), **settings)
    assert torch.equal(torch.get_rng_state(), before)


def test_outputs_come_in_order_if_asked(tiny):
    found = generate_many(tiny, PROMPTS, rows=4, ordered=True, **GREEDY)
    assert [index for index, _ in found] == [*range(len(PROMPTS))]


def test_samples_depend_on_neither_the_rows_nor_the_other_prompts(tiny):
    for rows in (1, 4):
        found = dict(generate_many(tiny, PROMPTS, rows=rows, seed=5, **SAMPLED))
        for index, prompt in enumerate(PROMPTS):
            torch.manual_seed(5 + index)
            assert torch.equal(found[index], tiny.generate(prompt, **SAMPLED))


def test_without_a_seed_torch_decides(tiny):
    def texts():
        torch.manual_seed(1)
        found = dict(generate_many(tiny, PROMPTS[:4], **SAMPLED))
        return [found[at].tolist() for at in range(4)]

    assert texts() == texts()
    same_prompt = dict(generate_many(tiny, PROMPTS[:1] * 4, **SAMPLED))
    assert len({str(each.tolist()) for each in same_prompt.values()}) > 1


def test_several_sequences_are_rows(tiny):
    found = dict(generate_many(tiny, PROMPTS[:3], seed=5, num_return_sequences=2, **SAMPLED))
    for index, prompt in enumerate(PROMPTS[:3]):
        for number in range(2):
            torch.manual_seed(5 + 2 * index + number)
            alone = tiny.generate(prompt, **SAMPLED)[0]
            assert torch.equal(found[index][number, : len(alone)], alone)
            assert (found[index][number, len(alone) :] == 0).all()


def test_dicts_have_the_fields_of_generate(tiny):
    settings = GREEDY | {"return_dict_in_generate": True, "output_scores": True}
    found = dict(generate_many(tiny, PROMPTS, rows=4, **settings))
    for index, prompt in enumerate(PROMPTS):
        plain = tiny.generate(prompt, **settings)
        assert torch.equal(found[index].sequences, plain.sequences)
        assert torch.allclose(torch.cat(found[index].scores), torch.cat(plain.scores), atol=1e-4)
        one, two = (cache_of(each).layers[0].keys for each in (found[index], plain))
        assert torch.allclose(one, two, atol=1e-4)
        assert one.untyped_storage().nbytes() == two.untyped_storage().nbytes()


def test_what_cannot_share_a_forward_runs_alone_and_is_said_once(tiny, caplog):
    settings = GREEDY | {"num_beams": 3}
    found = dict(generate_many(tiny, PROMPTS[:3], **settings))
    assert same(tiny, found, PROMPTS[:3], **settings)
    eager = tiny_llama(attn_implementation="eager")
    assert same(eager, dict(generate_many(eager, PROMPTS, **GREEDY)), **GREEDY)
    said = [each.message for each in caplog.records if "one by one" in each.message]
    assert len(said) == 2
    assert "beam search" in said[0]


def test_texts_chats_and_dicts(tiny):
    tokenizer = tiny_tokenizers.letters()
    tokenizer.chat_template = "{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}"
    ids, chat = tokenizer("tobe!")["input_ids"], [{"role": "user", "content": "tobe"}]
    forms = ["tobe!", chat, ids, np.array(ids), torch.tensor([ids]), tokenizer("tobe!")]
    found = dict(generate_many(tiny, forms, tokenizer=tokenizer, **GREEDY))
    assert same(tiny, found, [torch.tensor([ids])] * len(forms), **GREEDY)


def test_prompts_with_hidden_tokens_are_read_as_generate_reads_them(tiny):
    prompts = [torch.cat((torch.zeros(1, 3, dtype=torch.int64), each), 1) for each in PROMPTS]
    assert same(tiny, dict(generate_many(tiny, prompts, rows=4, **GREEDY)), prompts, **GREEDY)
    masked = {"input_ids": prompts[0], "attention_mask": (prompts[0] > 0).long()}
    assert torch.equal(
        dict(generate_many(tiny, [masked], **GREEDY))[0], tiny.generate(**masked, **GREEDY)
    )


def test_a_common_beginning_is_read_once(tiny, monkeypatch):
    monkeypatch.setattr("ngramspec.many.CHUNK", 16)  # so that it takes several turns
    common = torch.arange(10, 80)[None]
    prompts = [torch.cat((common, each), 1) for each in PROMPTS]
    positions = []
    hook = tiny.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(kwargs["input_ids"].shape[1]),
        with_kwargs=True,
    )
    try:
        found = dict(generate_many(tiny, prompts, rows=12, speculator=Speculator("none"), **GREEDY))
    finally:
        hook.remove()
    assert same(tiny, found, prompts, **GREEDY)
    steps = sum(each.shape[1] - prompts[at].shape[1] - 1 for at, each in found.items())
    assert sum(positions) - steps < 70 + sum(map(torch.numel, PROMPTS)) + 60


@pytest.mark.parametrize("rows", [1, 4])
def test_errors_are_raised_or_yielded(tiny, rows):
    prompts = [PROMPTS[0], [], PROMPTS[1], "text", [5, 999], PROMPTS[2]]
    found = dict(generate_many(tiny, prompts, rows=rows, errors="yield", **GREEDY))
    kinds = {index: type(each) for index, each in found.items() if isinstance(each, Exception)}
    assert kinds == {1: ValueError, 3: TypeError, 4: ValueError}
    assert all(torch.equal(found[at], tiny.generate(prompts[at], **GREEDY)) for at in (0, 2, 5))
    with pytest.raises(ValueError, match="of prompts"):
        dict(generate_many(tiny, prompts, rows=rows, **GREEDY))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "rows must be >= 1, got 0"),
        ({"errors": "ignore"}, "errors must be 'raise' or 'yield'"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"streamer": object()}, "streamer cannot be passed to generate_many"),
        ({"attention_mask": torch.ones(1, 2)}, "pass it in a prompt's dict"),
    ],
)
def test_bad_arguments_are_refused_at_once(tiny, settings, message):
    with pytest.raises(ValueError, match=message):
        generate_many(tiny, PROMPTS, **settings)
    with pytest.raises(TypeError, match="prompts must be an iterable of prompts, got str"):
        generate_many(tiny, "text")


def test_a_lack_of_memory_halves_the_rows_and_loses_nothing(tiny, monkeypatch):
    run, sizes = JointForward.run, []

    def short(self, *args):
        sizes.append(len(self._shares))
        if len(self._shares) > 3 and len(sizes) > 5:
            raise torch.OutOfMemoryError("out of memory")
        return run(self, *args)

    monkeypatch.setattr(JointForward, "run", short)
    found = dict(generate_many(tiny, PROMPTS, rows=8, seed=5, **SAMPLED))
    for index, prompt in enumerate(PROMPTS):
        torch.manual_seed(5 + index)
        assert torch.equal(found[index], tiny.generate(prompt, **SAMPLED))
    assert sizes.count(8) > 0
    assert max(sizes[-10:]) <= 3


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_frees_the_caches(tiny, monkeypatch, raised):
    run, turns = JointForward.run, count()

    def interrupted(self, *args):
        if next(turns) == 9:
            raise raised
        return run(self, *args)

    with made_caches() as caches:
        monkeypatch.setattr(JointForward, "run", interrupted)
        with pytest.raises(raised):
            list(generate_many(tiny, PROMPTS, rows=4, **GREEDY))
        assert caches.made >= 4
        assert caches.alive == 0
        speculator = Speculator()
        generated = generate_many(tiny, PROMPTS, rows=4, speculator=speculator, **GREEDY)
        next(generated)
        generated.close()
        assert caches.alive == 0
        assert speculator.stats.runs >= 4  # those that were interrupted are counted


def test_references_and_stores_are_drafted_from(tiny):
    plain = [tiny.generate(each, **GREEDY)[0].tolist() for each in PROMPTS]
    references = (text if at % 2 else None for at, text in enumerate(plain))
    speculator = Speculator()
    found = dict(
        generate_many(tiny, PROMPTS, speculator=speculator, reference_ids=references, **GREEDY)
    )
    assert same(tiny, found, **GREEDY)
    assert speculator.stats.accepted > 0
    with pytest.raises(ValueError, match="reference_ids has only 1 entries"):
        list(generate_many(tiny, PROMPTS, reference_ids=plain[:1], **GREEDY))
    store, second = SharedStore(1 << 20), Speculator()
    for _ in range(2):
        found = dict(generate_many(tiny, PROMPTS, speculator=second, stores=[store["a"]], **GREEDY))
        assert same(tiny, found, **GREEDY)
    assert second.stats.accepted > speculator.stats.accepted


@pytest.mark.parametrize("iterator", [False, True])
def test_each_prompt_can_have_different_stores(tiny, iterator):
    store, speculator, settings = SharedStore(1 << 20), Speculator(), GREEDY | {"rows": 4}
    stores = [[store[str(at)]] if at % 2 else None for at in range(len(PROMPTS))]
    for _ in range(2):
        given = iter(stores) if iterator else stores
        found = dict(generate_many(tiny, PROMPTS, speculator=speculator, stores=given, **settings))
        assert same(tiny, found, **GREEDY)
    assert sorted(map(int, store)) == [*range(1, len(PROMPTS), 2)]
    for at in range(1, len(PROMPTS), 2):
        new = found[at].shape[1] - PROMPTS[at].shape[1]
        assert store[str(at)].statistics().added == 2 * new
    with pytest.raises(ValueError, match="stores has only 2 entries"):
        list(generate_many(tiny, PROMPTS, stores=stores[:2], **GREEDY))


def test_accepted_drafts_shorten_the_run(tiny):
    texts = [tiny.generate(each, **GREEDY)[0].tolist() for each in PROMPTS[:1]]
    speculator = Speculator(half_right(texts[0], 97), 5)
    found = dict(generate_many(tiny, PROMPTS[:1] * 3, speculator=speculator, **GREEDY))
    assert same(tiny, found, PROMPTS[:1] * 3, **GREEDY)
    assert speculator.stats.tokens_per_call > 1.5


def test_a_bar_counts_prompts_and_tokens(tiny, capsys, monkeypatch):
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", True)
    list(generate_many(tiny, PROMPTS, progress_bar=True, **GREEDY))
    shown = capsys.readouterr().err
    assert f"{len(PROMPTS)}/{len(PROMPTS)}" in shown
    assert "tokens/s" in shown
    assert ngramspec.generate_many is generate_many
