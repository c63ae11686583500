"""A model as a drafter: its text, its distribution, its tables, and what is refused."""

from __future__ import annotations

import copy
import gc
import json
import weakref

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ids

import ngramspec
from ngramspec import Speculator, UnsupportedError, build_drafter
from ngramspec.costs.model import CostModel
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.assistants import DraftingModel
from ngramspec.drafters import ModelDrafter, OracleDrafter, PriorityDrafter, RandomDrafter
from ngramspec.drafters.registry import quoted
from ngramspec.hf_model.assistants import AssistantModel

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
VOCAB = 97
RUNS = 500

STEPS = StepCosts(CostModel({1: 1.0, 2: 1.0}), 9)


def generated(model, drafter, new=60, seed=0, ids=PROMPT, speculator=None, **arguments):
    speculator = speculator or Speculator(drafter, gamma=8)
    torch.manual_seed(seed)
    own = {"do_sample": False, "max_new_tokens": new} | arguments
    return ngramspec.generate(model, input_ids=ids, speculator=speculator, **own), speculator


def drafting(model):
    return DraftingModel(AssistantModel(model), VOCAB, STEPS, 1.0)


def said_by(model, text, new):
    """What a model says by itself; a 0 in the text is no padding."""
    ids = torch.tensor([text])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
    )
    return out[0, len(text) :].tolist()


@pytest.mark.parametrize("tables", [True, False])
def test_greedy_text_stays_and_the_same_model_is_always_right(tiny, close, tables):
    plain, _ = generated(tiny, "none")
    itself = ModelDrafter(tiny, threshold=1e-9, tables=tables)
    out, speculator = generated(tiny, itself)
    assert out.tolist() == plain.tolist()
    assert speculator.stats.accepted == speculator.stats.drafted > 40
    out, speculator = generated(tiny, ModelDrafter(close, threshold=0.2, tables=tables))
    assert out.tolist() == plain.tolist()
    assert 0.3 < speculator.stats.alpha < 1


def test_the_draft_is_what_the_model_itself_would_say(close):
    """Over many steps with rejections: the cache is truncated rightly."""
    rng = np.random.default_rng(0)
    for tables in (True, False):
        drafter = ModelDrafter(close, threshold=1e-9, tables=tables)
        session = drafter.start(ids(5, 6, 7, 8, 5, 6, 7))
        session.begin_models(lambda _: drafting(close))
        text = [5, 6, 7, 8, 5, 6, 7]
        for _ in range(25):
            gamma = int(rng.integers(1, 8))
            draft = session.propose(gamma)
            assert draft.tokens.tolist() == said_by(close, text, gamma)
            assert ((draft.confidence > 0) & (draft.confidence <= 1)).all()
            keep = int(rng.integers(0, gamma + 1))
            new = [*draft.tokens[:keep].tolist(), int(rng.integers(0, VOCAB))]
            after = session.propose_after(ids(*new), 3)
            assert after.tokens.tolist() == said_by(close, [*text, *new], 3)
            session.extend(ids(*new))
            text += new


def test_tables_save_forwards_of_the_model(tiny):
    forwards = {True: [], False: []}
    for tables, calls in forwards.items():
        model = drafting(tiny)
        forward = model.forward
        model.forward = lambda *args, at=calls, run=forward: at.append(args) or run(*args)
        session = ModelDrafter(tiny, threshold=1e-9, tables=tables).start(ids(*PROMPT[0].tolist()))
        session.begin_models(lambda _, model=model: model)
        said = session.propose(8).tokens
        for _ in range(6):
            session.extend(ids(*PROMPT[0].tolist()))  # the model says the same there again
            session.extend(said)
            session.extend(ids(*PROMPT[0].tolist()))
            session.propose(8)
    assert 0 < len(forwards[True]) < len(forwards[False])


@pytest.mark.every(4)
@pytest.mark.long
@pytest.mark.parametrize(("most", "tables"), [(3, True), (None, False)])
def test_sampled_tokens_have_the_stated_distribution(close, most, tables):
    drafter = ModelDrafter(close, threshold=1e-9, top_k=most, tables=tables)
    counts, stated = np.zeros(VOCAB), None
    for seed in range(RUNS):
        session = drafter.start(ids(5, 6, 7, 8, 5, 6, 7))
        session.begin_models(lambda _: drafting(close))
        session.begin_sampling(0.7, (seed,))
        draft = session.propose(1)
        tokens, probs = draft.proposal.of(0)
        stated = np.zeros(VOCAB)
        stated[tokens] = probs
        counts[draft.tokens[0]] += 1
    logits = close(torch.tensor([[5, 6, 7, 8, 5, 6, 7]])).logits[0, -1] / 0.7
    if most is not None:
        logits[logits < logits.topk(most).values[-1]] = -torch.inf
    np.testing.assert_allclose(stated, torch.softmax(logits, -1).detach().numpy(), atol=1e-5)
    kept = stated * RUNS > 5
    rest = RUNS * stated[~kept].sum(), counts[~kept].sum()
    expected, seen = np.append(RUNS * stated[kept], rest[0]), np.append(counts[kept], rest[1])
    chi = float(((seen - expected) ** 2 / np.maximum(expected, 1)).sum())
    assert chi < 6 * len(expected) + 30


def test_sampled_text_is_accepted_by_algorithm_1(tiny, close):
    drafter = ModelDrafter(close, threshold=0.05)
    out, speculator = generated(tiny, drafter, do_sample=True, temperature=0.8)
    assert out.shape[1] == 70
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.alpha > 0.4
    assert not torch.equal(out, generated(tiny, drafter, seed=1, do_sample=True)[0])


def test_it_is_a_tier_like_any_other(tiny, close):
    plain, _ = generated(tiny, "none")
    source_names = PriorityDrafter([build_drafter("copy", policy="priority"), ModelDrafter(close)])
    assert len(source_names.assistants) == 1
    out, speculator = generated(tiny, source_names)
    assert out.tolist() == plain.tolist()
    assert speculator.stats.sources["model"].accepted > 5
    out, _ = generated(tiny, None, speculator=Speculator(ModelDrafter(close)))  # gamma="auto"
    assert out.tolist() == plain.tolist()


def test_a_folder_is_read_once_and_the_spec_makes_it_again(tiny, close, tmp_path):
    close.save_pretrained(tmp_path)
    speculator = Speculator(f"model({tmp_path},gamma=5)")
    plain, _ = generated(tiny, "none")
    assert generated(tiny, None, speculator=speculator)[0].tolist() == plain.tolist()
    loaded = speculator.drafter.loaded[tiny]
    assert speculator.stats.accepted > 0
    generated(tiny, None, speculator=speculator)
    assert speculator.drafter.loaded[tiny] is loaded
    again = Speculator.from_dict(json.loads(json.dumps(speculator.to_dict())))
    assert again.to_dict() == speculator.to_dict()
    assert again.drafter.assistant == str(tmp_path)
    (tmp_path / "a file").write_text("")
    for path, said in (
        ("/no-such-folder", "there is no folder '/no-such-folder'; pass the folder"),
        (f"{tmp_path}/a file", "a file' is a file; pass the folder"),
        ("", "there is no folder ''"),
    ):
        for given in ({"drafter": f"model({quoted(path)})"}, {"assistant_model": path}):
            with pytest.raises(OSError, match=said):
                generated(tiny, **{"drafter": "auto"} | given)


def test_code_of_a_folder_is_not_run_and_the_user_is_not_asked(tiny, close, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")
    close.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="trust_remote_code"):
        generated(tiny, f"model({tmp_path})")
    assert not asked


def test_copies_share_the_weights(close):
    drafter = ModelDrafter(close)
    assert copy.deepcopy(Speculator(drafter)).drafter.assistant is close


def test_it_drafts_nothing_where_it_cannot_read_on(tiny):
    short = tiny_llama(positions=16)
    out, speculator = generated(tiny, ModelDrafter(short, threshold=1e-9))
    assert out.tolist() == generated(tiny, "none")[0].tolist()
    assert speculator.stats.drafter_faults == 0
    assert len(ModelDrafter(tiny).start(ids(1, 2)).propose(4)) == 0  # no model was opened


def test_arguments_are_checked():
    for arguments, said in (
        ({"gamma": 0}, "gamma must be >= 1, got 0"),
        ({"threshold": 0.0}, "threshold must be > 0"),
        ({"top_k": 0}, "top_k must be in 1"),
    ):
        with pytest.raises(ValueError, match=said):
            ModelDrafter("somewhere", **arguments)
    with pytest.raises(TypeError, match="path must be a model or the folder of one, got 3"):
        ModelDrafter(3)
    with pytest.raises(ValueError, match="is no argument of model"):
        build_drafter("model(a,b)")


def test_the_oracle_is_always_right_and_chance_never_changes_the_text(tiny):
    plain, _ = generated(tiny, "none")
    out, speculator = generated(tiny, OracleDrafter([[1, 2, 3], plain[0].tolist()]))
    assert out.tolist() == plain.tolist()
    assert speculator.stats.accepted == speculator.stats.drafted == 52
    session = OracleDrafter([[1, 2, 3]]).start(ids(1))
    assert session.propose_after(ids(2), 5).tokens.tolist() == [3]
    assert len(session.propose_after(ids(9), 5)) == len(session.propose(0)) == 0
    out, speculator = generated(tiny, "random(vocab=97)")
    assert out.tolist() == plain.tolist()
    assert speculator.stats.drafted > 100
    assert RandomDrafter(97, seed=3).spec == build_drafter("random(vocab=97,seed=3)").spec


def test_another_target_is_compared_too_and_none_is_kept_alive():
    first, drafter = tiny_llama(), ModelDrafter(tiny_llama())
    generated(first, drafter, new=5)
    kept = weakref.ref(first)
    del first
    gc.collect()
    assert kept() is None
    what = "LlamaForCausalLM cannot draft .*: it has 97 token ids, the target has 50"
    with pytest.raises(UnsupportedError, match=what):
        generated(tiny_llama(vocab=50), drafter, new=5)
