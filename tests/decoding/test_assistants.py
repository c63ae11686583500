"""Which models may draft for a target: their tokenizers, and the ids that each has."""

from __future__ import annotations

import copy

import huggingface_hub
import pytest
import torch
from conftest import tiny_llama
from plain_text import PROMPT

import ngramspec
from ngramspec import Speculator, UnsupportedError, build_drafter
from ngramspec.costs.model import CostModel
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.assistants import DraftingModel, check_models
from ngramspec.drafters import ModelDrafter, model
from ngramspec.hf_model.assistants import AssistantModel, tokenizer_file

GREEDY = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0}
COMMIT = "0123456789abcdef0123456789abcdef01234567"

STEPS = StepCosts(CostModel({1: 1.0, 2: 1.0}), 9)


def tokenizer(words):
    """A tokenizer with one token for each letter of ``words``."""
    from tokenizers import Tokenizer, models

    vocabulary = {each: at for at, each in enumerate(words)}
    return Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))


def place_of(kind, name, words, root):
    """A place with a tokenizer.json, as a model's name: a folder, or a repository in the cache."""
    if kind == "folder":
        folder = root / name
        folder.mkdir()
        tokenizer(words).save(str(folder / "tokenizer.json"))
        return str(folder)
    folder = root / f"models--acme--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    tokenizer(words).save(str(folder / "snapshots" / COMMIT / "tokenizer.json"))
    return f"acme/{name}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return lambda kind, name, words: place_of(kind, name, words, tmp_path)


def padded(sizes):
    """Two models with these numbers of ids, which compute the same logits for common ids."""
    whole, models = tiny_llama(vocab=max(sizes)), []
    for size in sizes:
        model = copy.deepcopy(whole)
        model.resize_token_embeddings(size)
        models.append(model)
    return models


def generated(target, assistant, prompt=PROMPT, **given):
    speculator = Speculator("none", gamma=8)
    given = GREEDY | {"assistant_model": assistant, "speculator": speculator} | given
    out = ngramspec.generate(target, prompt, attention_mask=torch.ones_like(prompt), **given)
    return out, speculator.stats


@pytest.mark.parametrize("kind", ["folder", "repository"])
@pytest.mark.parametrize("sizes", [(104, 97), (97, 104)])
def test_equal_tokenizers_with_other_padding_draft(place, kind, sizes):
    target, assistant = padded(sizes)
    target.name_or_path = place(kind, "large", "abc")
    assistant.name_or_path = place(kind, "small", "abc")
    plain = target.generate(PROMPT, **GREEDY)
    out, stats = generated(target, assistant)
    assert out.tolist() == plain.tolist()
    assert stats.drafter_faults == 0
    assert stats.sources["model"].accepted > 10
    out, stats = generated(target, assistant, do_sample=True)
    assert out.shape == plain.shape
    assert stats.drafter_faults == 0
    assert stats.sources["model"].accepted > 5


def test_a_call_that_runs_plainly_keeps_its_assistant():
    (target, assistant), calls = padded((104, 97)), []
    target.generate = lambda *args, **kwargs: calls.append(kwargs)
    given = {"assistant_model": assistant, "tokenizer": tokenizer("abc")}
    for more in ({"assistant_tokenizer": tokenizer("abd")}, {"assistant_ensemble_weight": 0.5}):
        with ngramspec.enable(target):
            target.generate(PROMPT, **given, **more)
        assert calls.pop() == given | more


def test_equal_tokenizers_of_the_call_are_believed():
    target, assistant = padded((104, 97))
    words = tokenizer("abc")
    own = {"tokenizer": words, "assistant_tokenizer": tokenizer("abc")}
    out, stats = generated(target, assistant, **own)
    assert out.tolist() == target.generate(PROMPT, **GREEDY).tolist()
    assert stats.sources["model"].accepted > 10
    with pytest.raises(UnsupportedError, match="97 token ids, the target has 104, and their"):
        generated(target, assistant, tokenizer=words)


@pytest.mark.parametrize("drafter", ["headed", "alone"])
def test_what_the_assistant_has_no_embedding_for_is_never_read(place, drafter):
    """It drafts until the text has such an id, also if a table drafts it."""
    target, assistant = padded((104, 97))
    for each, name in ((target, "large"), (assistant, "small")):
        each.name_or_path = place("folder", name, "abc")
    head, read = ModelDrafter(assistant, threshold=1e-9), []
    assistant.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(int(kwargs["input_ids"].max())), with_kwargs=True
    )
    given = {"assistant_model": assistant} if drafter == "headed" else {}
    speculator = Speculator("auto" if drafter == "headed" else head, gamma=8)
    with_none = torch.tensor([[5, 6, 7, 8] * 3])
    with_one = torch.tensor([[5, 6, 101, 8, 5, 6, 7] * 3])
    for prompt in (with_none, with_one, PROMPT):
        plain = target.generate(prompt, **GREEDY)
        own = given | {"speculator": speculator}
        assert ngramspec.generate(target, prompt, **own, **GREEDY).tolist() == plain.tolist()
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.sources["model"].drafted > 0
    assert max(read) < 97


@pytest.mark.parametrize("size", [97, 104])
def test_probabilities_are_over_the_common_ids(size):
    target, assistant = padded((97, size))
    drafting = DraftingModel(AssistantModel(assistant), 97, STEPS, 1.0)
    with torch.no_grad():
        expected = target(PROMPT).logits[0, -1].log_softmax(-1)
    ids, log_probs = drafting.forward(PROMPT[0].int().numpy(), 1, 1000)
    assert sorted(ids[0].tolist()) == list(range(97))
    torch.testing.assert_close(
        torch.from_numpy(log_probs[0]), expected[ids[0].tolist()], atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ["folder", "repository"])
def test_another_tokenizer_of_equal_size_is_refused(place, kind):
    target, assistant = tiny_llama(), tiny_llama()
    target.name_or_path = place(kind, "large", "abc")
    assistant.name_or_path = place(kind, "small", "abd")
    with pytest.raises(UnsupportedError, match="small.* cannot draft for .*large.*: their token"):
        generated(target, assistant)
    assistant.name_or_path = place(kind, "other", "abc")  # not the earlier answer
    generated(target, assistant)


def test_a_tokenizer_that_cannot_be_read_is_not_known(place, tmp_path, monkeypatch):
    target, assistant = tiny_llama(), tiny_llama()
    target.name_or_path = place("folder", "large", "abc")
    assistant.name_or_path = place("folder", "small", "abd")
    broken = tmp_path / "small" / "tokenizer.json"
    for content in (b"", b"{}", b"\xff\xfe", b'{"model": {"type": "None"}}', b"[1, 2"):
        broken.write_bytes(content)
        generated(target, assistant, max_new_tokens=2)
    for name in ("", "no such place", "a/b/c", "acme/none", "\0", "x" * 5000, None, 3):
        assistant.name_or_path = name
        assert tokenizer_file(assistant) is None
    monkeypatch.chdir(tmp_path / "large")
    assistant.name_or_path = ""
    assert tokenizer_file(assistant) is None


def test_tokenizers_are_read_once(place, monkeypatch):
    target, assistant = tiny_llama(), tiny_llama()
    target.name_or_path = place("folder", "large", "abc")
    assistant.name_or_path = place("folder", "small", "abc")
    found = []
    own = model.fingerprint
    monkeypatch.setattr(model, "fingerprint", lambda each: found.append(each) or own(each))
    for _ in range(3):
        check_models(target, ModelDrafter(assistant))
    assert len(found) == 2


def test_speculators_with_a_folder_share_its_model_and_moved_targets_have_another(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    target, read = tiny_llama(), []
    for dtype in (torch.float32, torch.float32, torch.float64):
        drafter = build_drafter(f'model("{tmp_path}")')
        ngramspec.generate(target.to(dtype), PROMPT, speculator=Speculator(drafter), **GREEDY)
        read.append(drafter.loaded[target])
    assert read[0] is read[1]
    assert read[2].dtype == torch.float64
