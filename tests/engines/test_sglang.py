"""SGLang's plugin: its corpus on recorded calls, and its registration at SGLang's own registry.

No SGLang server runs here. With the package's source at hand (SGLANG_SOURCE, a folder that holds
``sglang``) the plugin's assumptions are checked against it.
"""

from __future__ import annotations

import ast
import os
import sys
from enum import Enum, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from ngramspec.draft import EMPTY_DRAFT, Draft
from ngramspec.engines import sglang
from ngramspec.engines.engine_texts import EngineTexts
from ngramspec.engines.rows import Rows
from ngramspec.engines.sglang import NgramspecCorpus, ancestors, last_tokens

NODES = 6


def corpus():
    return NgramspecCorpus(Rows("auto", NODES - 1, 1000, 4096, tree=True), NODES)


def paths(tokens, mask):
    """Of each node the tokens from the root, by its row of the mask."""
    return [tuple(tokens[row.nonzero()[0]].tolist()) for row in mask.reshape(len(tokens), -1)]


def test_a_recorded_sequence_of_calls():
    """Two requests that come, go on, and leave: as SGLang 0.5.23's worker calls."""
    ours = corpus()
    one = [1, 2, 3, 4, 9, 1, 2, 3]
    two = [7, 8, 7, 8, 7]
    ours.synchronize()
    tokens, mask = ours.batch_get(["a", "b"], [one, two], [8, 5])
    assert tokens.dtype == mask.dtype == np.int64
    assert tokens.shape == (2 * NODES,)
    assert mask.shape == (2 * NODES * NODES,)
    assert (tokens[0], tokens[NODES]) == (3, 7)
    mask = mask.reshape(2, NODES, NODES)
    assert (3, 4, 9) in paths(tokens[:NODES], mask[0])
    assert (7, 8, 7) in paths(tokens[NODES:], mask[1])
    ours.batch_put([one, two])
    assert (ours.known("a"), ours.known("b")) == (8, 5)

    tokens, _ = ours.batch_get(["b", "a"], [[8, 7], [3, 4, 9]], [7, 10])  # tails of two and more
    assert (tokens[0], tokens[NODES]) == (7, 9)
    assert ours.rows.stats.opened == 2
    assert ours.rows.stats.accepted == 4

    ours.erase_match_state(["a", "unknown"])
    assert len(ours.rows) == 1
    tokens, _ = ours.batch_get(["a"], [[*one, 4, 9, 5]], [11])  # it was retracted and came back
    assert tokens[0] == 5
    assert ours.rows.stats.opened == 3
    ours.reset()
    assert len(ours.rows) == 0
    assert ours.known("a") == 0


def test_every_row_has_all_nodes_and_padding_hangs_from_the_first():
    tokens, mask = corpus().batch_get(["a"], [[1, 2, 3]], [3])
    found = paths(tokens, mask)
    drafted = [path for path in found[1:] if path[-1] != 0]
    assert all(path[0] == 3 for path in found)
    assert found[1 + len(drafted) :] == [(3, 0)] * (NODES - 1 - len(drafted))


def test_the_mask_names_ancestors():
    """By hand: 0 -> 1, 0 -> 2, 1 -> 3; the fifth is padding."""
    tree = Draft(np.array([5, 6, 7], np.int32), np.array([-1, -1, 0], np.int32))
    wanted = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1]]
    assert ancestors(tree, 5).tolist() == wanted
    chain = Draft(np.array([5, 6], np.int32))
    assert ancestors(chain, 3).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert ancestors(EMPTY_DRAFT, 2).tolist() == [[1, 0], [1, 1]]


def test_no_external_corpora():
    ours = corpus()
    with pytest.raises(ValueError, match="NGRAMSPEC has no external corpora, got 'docs'"):
        ours.load_external_corpus_named("docs", [[1]])
    ours.commit_external_corpus_load("docs", 0)
    ours.remove_external_corpus("docs")
    assert ours.list_external_corpora() == {}
    assert ours.remaining_token_budget == 0


def test_texts_grow_by_what_is_new():
    texts = EngineTexts()
    assert texts.row("a", [1, 2, 3], 3).new == [1, 2, 3]
    row = texts.row("a", [2, 3, 4, 5], 5)
    assert row.new == [4, 5]
    assert row.tokens[: row.length].tolist() == [1, 2, 3, 4, 5]
    assert texts.row("a", [5], 5).new == []
    again = texts.row("a", [9, 5, 6], 6)  # another text
    assert again.tokens[: again.length].tolist() == [9, 5, 6]
    assert texts.row("a", [1, 2], 2).new == [1, 2]  # tokens were taken back
    long = texts.row("a", list(range(500)), 500)
    assert long.tokens[: long.length].tolist() == list(range(500))
    assert texts.known("a") == 500


def test_last_tokens_of_parts():
    parts = ([1, 2, 3], [4], [5, 6])
    assert [last_tokens(parts, n) for n in (0, 1, 3, 5, 6)] == [
        *([], [6], [4, 5, 6], [2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    ]
    assert last_tokens(([1], []), 1) == [1]


class Algorithm(Enum):
    NGRAM = auto()


class Custom:
    def __init__(self, name, factory, *, supports_overlap, validate_server_args):
        self.name, self.factory = name, factory
        self.supports_overlap, self.validate = supports_overlap, validate_server_args


class Ngram:
    """As much of SGLang's worker as the plugin overrides."""

    def __init__(self, server_args, gpu_id, nccl_port, target_worker):
        self.model_runner = target_worker.model_runner
        self.draft_token_num = NODES
        self.enable_overlap = server_args.overlap


class Tensor(list):
    def cpu(self):
        return self

    def tolist(self):
        return list(self)


@pytest.fixture
def stub(monkeypatch):
    """SGLang's modules, as far as the plugin imports them."""
    known = {}

    class Registered:
        @classmethod
        def from_string(cls, name):
            if name not in known:
                raise ValueError(f"Unknown speculative algorithm name: {name}")
            return known[name]

        @classmethod
        def register(cls, name, *, spec_class, **kwargs):
            def decorator(factory):
                known[name] = spec_class(name, factory, **kwargs)
                return factory

            return decorator

    names = {
        "sglang.srt.speculative.spec_info": {
            "CustomSpecAlgo": Custom,
            "SpeculativeAlgorithm": Registered,
        },
        "sglang.srt.speculative.ngram_worker": {"NGRAMWorker": Ngram},
    }
    for parent in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for name, values in names.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return known


def request(rid, prompt, output):
    return SimpleNamespace(rid=rid, origin_input_ids_unpadded=prompt, output_ids=output)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_worker_tells_the_corpus_what_is_new(stub, overlap):
    """In overlap mode the last tokens are not in the requests yet."""
    sglang.register()
    sglang.register()
    algorithm = stub["NGRAMSPEC"]
    assert algorithm.is_ngram()
    assert not algorithm.has_draft_kv()
    assert algorithm.supports_overlap
    config = SimpleNamespace(vocab_size=1000, context_len=512)
    target = SimpleNamespace(model_runner=SimpleNamespace(model_config=config))
    worker = algorithm.factory(None)(SimpleNamespace(overlap=overlap), 0, 0, target)
    one, two = request("a", [1, 2, 3, 4, 1, 2], [3]), request("b", [5, 6, 5], [])
    batch = SimpleNamespace(reqs=[one, two], grammar_needs_sync=lambda: False, spec_info=None)
    texts = {"a": [1, 2, 3, 4, 1, 2, 3], "b": [5, 6, 5]}
    for accepted in ([[4], [6]], [[1, 2], [5]], [[9], [5, 6, 5]]):
        if overlap:
            flat = [(each + [0] * NODES)[:NODES] for each in accepted]
            batch.spec_info = SimpleNamespace(
                accept_tokens=Tensor([token for each in flat for token in each]),
                accept_lens=Tensor([len(each) for each in accepted]),
            )
        for each, new in zip(batch.reqs, accepted, strict=True):
            texts[each.rid] += new
            if not overlap:
                each.output_ids = each.output_ids + new
        tokens, _ = worker._prepare_draft_tokens(batch)
        worker._update_ngram_corpus(batch)
        assert (tokens[0], tokens[NODES]) == (texts["a"][-1], texts["b"][-1])
        kept = worker.ngram_corpus._texts._texts
        assert {key: buffer[:n].tolist() for key, (buffer, n) in kept.items()} == texts
        if overlap:
            for each, new in zip(batch.reqs, accepted, strict=True):
                each.output_ids = each.output_ids + new
    assert worker.ngram_corpus.rows.stats.opened == 2


def test_arguments_that_cannot_be_served_are_refused(monkeypatch):
    args = SimpleNamespace(tp_size=1, speculative_ngram_external_corpus_path=None)
    sglang.check_server_args(args)
    with pytest.raises(ValueError, match="tp_size must be 1, got 2"):
        sglang.check_server_args(SimpleNamespace(tp_size=2))
    args.speculative_ngram_external_corpus_path = "docs"
    with pytest.raises(ValueError, match="leave it out"):
        sglang.check_server_args(args)
    monkeypatch.setenv("NGRAMSPEC_OPTIONS", '{"slope": 1}')
    with pytest.raises(ValueError, match="NGRAMSPEC_OPTIONS: no option slope; known: drafter"):
        sglang.check_server_args(SimpleNamespace())


def _class(path, name):
    tree = ast.parse((Path(os.environ["SGLANG_SOURCE"]) / path).read_text(encoding="utf-8"))
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    found = next(each for each in nodes if each.name == name)
    return {
        each.name: [argument.arg for argument in each.args.args]
        for each in found.body
        if isinstance(each, ast.FunctionDef)
    }


@pytest.mark.skipif("SGLANG_SOURCE" not in os.environ, reason="SGLANG_SOURCE: folder of sglang")
def test_what_is_overridden_is_there_in_sglang_s_source():
    worker = _class("sglang/srt/speculative/ngram_worker.py", "NGRAMWorker")
    for name in ("_prepare_draft_tokens", "_update_ngram_corpus"):
        assert worker[name] == ["self", "batch"]
    assert worker["__init__"] == ["self", "server_args", "gpu_id", "nccl_port", "target_worker"]
    theirs = _class("sglang/srt/speculative/cpp_ngram/ngram_corpus.py", "NgramCorpus")
    ours = vars(NgramspecCorpus)
    for name, arguments in theirs.items():
        if name.startswith("_") or name in ("leaf_paths_from_mask", "debug_result"):
            continue
        mine = ours[name].fget if isinstance(ours[name], property) else ours[name]
        assert list(mine.__code__.co_varnames[: mine.__code__.co_argcount]) == arguments, name
    custom = _class("sglang/srt/speculative/spec_registry.py", "CustomSpecAlgo")
    assert {"is_ngram", "has_draft_kv", "handle_server_args"} <= custom.keys()
