"""Processes that decode together: the first rank's drafts, and equally many forwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from plain_text import PROMPT
from transformers import Qwen3NextForCausalLM

from benchmarks import tiny as tiny_models
from ngramspec import Draft, Speculator, UnsupportedError, generate
from ngramspec.decoding import distributed as ranks
from ngramspec.decoding import setup
from ngramspec.decoding.distributed import FIRST_MESSAGE_NODES, Ranks, ranks_of
from ngramspec.decoding.row import Row

HERE = Path(__file__).parent


class Wire:
    """Stands for torch.distributed between two ranks called in turn, the first one first."""

    def __init__(self, world=2):
        self.rank, self.world, self.sent, self.count = 0, world, [], 0

    def get_rank(self, group):
        return self.rank

    def broadcast(self, tensor, group, group_src):
        assert (group, group_src) == ("group", 0)
        self.count += 1
        if self.rank == 0:
            self.sent.append(tensor.clone())
        else:
            message = self.sent.pop(0)
            assert message.shape == tensor.shape  # else the processes would hang
            tensor.copy_(message)

    def all_reduce(self, tensor):
        self.count += 1

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_world_size(self):
        return self.world


def chain(n):
    return Draft(np.arange(n, dtype=np.int32))


def rows_of(drafts):
    """Rows with these drafts."""
    rows = [Row(None) for _ in drafts]
    for row, draft in zip(rows, drafts, strict=True):
        row.take(draft)
    return rows


TREE = Draft(np.array([4, 5, 6], np.int32), np.array([-1, -1, 0], np.int32))


@pytest.mark.parametrize(
    ("drafts", "broadcasts"),
    [
        ([chain(0)], 1),
        ([chain(1), chain(0), chain(FIRST_MESSAGE_NODES)], 1),
        ([chain(3), TREE], 1),
        ([chain(FIRST_MESSAGE_NODES + 1), TREE], 2),
        ([chain(4096)], 2),
    ],
)
def test_every_rank_gets_the_first_one_s_drafts(monkeypatch, drafts, broadcasts):
    wire = Wire()
    monkeypatch.setattr(ranks, "dist", wire)
    drafts[0] = replace(drafts[0], proposal="kept to itself")
    rows = rows_of(drafts)
    width = Ranks("group").share(rows, 70)
    assert [row.draft.proposal for row in rows] == [None] * len(drafts)
    assert wire.count == len(wire.sent) == broadcasts
    wire.rank = 1
    rows = rows_of([chain(7)] * len(drafts))
    theirs = Ranks("group").share(rows, 8)
    assert (width, theirs) == (70, 70)
    assert wire.count == 2 * broadcasts
    assert not wire.sent  # the second rank has received all of them
    for mine, theirs in zip([row.draft for row in rows], drafts, strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert mine.tokens.dtype == np.int32
        assert (mine.parents is None) == (theirs.parents is None)
        assert mine.parents is None or mine.parents.tolist() == theirs.parents.tolist()


def mesh(axes, *sizes):
    part = SimpleNamespace(get_group=lambda: "tp group")

    class Mesh(SimpleNamespace):
        def __getitem__(self, name):
            assert name == "tp"
            return part

    return Mesh(mesh_dim_names=axes, mesh=torch.zeros(sizes), get_group=lambda: "whole")


@pytest.mark.parametrize(
    ("given", "group"),
    [
        (None, None),
        (mesh(None, 2), "whole"),
        (mesh(("pp", "fsdp", "tp"), 1, 1, 2), "tp group"),
        (mesh(("pp", "fsdp", "tp"), 1, 2, 1), None),
        (mesh(("fsdp",), 2), None),
    ],
)
def test_the_group_is_the_tensor_parallel_part_of_the_mesh(monkeypatch, given, group):
    monkeypatch.setattr(ranks, "dist", Wire())
    model = tiny_llama()
    model._device_mesh = given
    assert ranks_of(model, torch.device("cpu")).group == group


def test_pipeline_parallelism_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(ranks, "dist", Wire())
    model = tiny_llama()
    model._device_mesh = mesh(("pp", "fsdp", "tp"), 2, 1, 1)
    with pytest.raises(UnsupportedError, match="pipeline parallelism"):
        ranks_of(model, torch.device("cpu"))


def test_synced_gpus_without_processes_is_refused_by_name(tiny):
    with pytest.raises(UnsupportedError, match="synced_gpus=True needs an initialized torch.dist"):
        generate(tiny, PROMPT, synced_gpus=True, max_new_tokens=4, do_sample=False)


def recurrent():
    return tiny_models.build(Qwen3NextForCausalLM)


@pytest.mark.parametrize(
    ("make", "asked", "message"),
    [
        (tiny_llama, {"cache_implementation": "static"}, "static cache, which has no room"),
        (recurrent, {}, "recurrent state, whose last rollback"),
    ],
)
def test_what_leaves_no_further_forward_is_refused_with_synced_gpus(
    monkeypatch, make, asked, message
):
    monkeypatch.setattr(ranks, "dist", Wire())
    with pytest.raises(UnsupportedError, match=message):
        generate(make(), PROMPT, synced_gpus=True, max_new_tokens=4, do_sample=False, **asked)


@pytest.mark.parametrize(("world", "synced_gpus"), [(1, True), (1, None), (2, False), (2, None)])
def test_a_process_with_a_text_of_its_own_sends_nothing(tiny, monkeypatch, world, synced_gpus):
    wire = Wire(world)
    for module in (setup, ranks):
        monkeypatch.setattr(module, "dist", wire)
    for drafter in ("copy", "none"):
        speculator = Speculator(drafter)
        generate(tiny, PROMPT, speculator=speculator, max_new_tokens=9, synced_gpus=synced_gpus)
    assert wire.count == 0
    assert wire.sent == []


def test_synced_processes_tell_each_other_only_whether_they_are_done(tiny, monkeypatch):
    wire = Wire()
    monkeypatch.setattr(ranks, "dist", wire)
    speculator = Speculator("none")
    generate(tiny, PROMPT, speculator=speculator, max_new_tokens=9, synced_gpus=True)
    assert wire.sent == []
    assert wire.count == 9  # once after each forward


def run(case, folder, out):
    """What two processes saw."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(HERE / "ranks_worker.py"), case, str(folder), str(out)]
    paths = os.pathsep.join(map(str, [HERE, *HERE.parents[:2]]))
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    log = out / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=env, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(timeout=400)
        finally:  # ranks that wait for each other outlive the one that started them
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-4000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_tensor_parallel_ranks_say_the_same(tmp_path):
    model = tiny_llama(vocab=96)
    model.save_pretrained(tmp_path / "model")
    first, second = run("tp", tmp_path / "model", tmp_path)
    kwargs = {"do_sample": False, "max_new_tokens": 100, "pad_token_id": 0}
    alone = model.generate(PROMPT, **kwargs, return_dict_in_generate=True, output_scores=True)
    assert first["shard"] == [32, 32]  # of (64, 32): the weights really were in two parts
    for seen in (first, second):
        assert_same_but_for_ties(seen["plain"], alone)
        for name in ("right on rank 0", "right on rank 1", "long", "none on rank 0"):
            assert_same_but_for_ties(seen[name], alone)
        for name in ("batch", "scores", "beams", "sampled"):
            assert seen[name] == seen[f"plain {name}"]
    own = [name for name in first if name != "shard"]
    assert [first[name] for name in own] == [second[name] for name in own]
    assert first["right on rank 0: calls"] < 20
    assert first["long: calls"] < 5  # drafts longer than a message
    assert first["none on rank 0: calls"] == 99  # what rank 1 knew was not used


def assert_same_but_for_ties(text, alone):
    """Greedy text may leave the other's where the two best scores lie within 1e-4."""
    expected = alone.sequences[0].tolist()
    assert len(text) == len(expected)
    differ = [at for at, pair in enumerate(zip(text, expected, strict=True)) if pair[0] != pair[1]]
    if differ:
        best = alone.scores[differ[0] - PROMPT.shape[1]][0].topk(2).values
        assert best[0] - best[1] < 1e-4, f"differs at {differ[0]}"


@pytest.mark.slow
def test_ranks_with_texts_of_their_own_forward_equally_often(tmp_path):
    tiny_llama(vocab=96).save_pretrained(tmp_path / "model")
    for rank, seen in enumerate(run("synced", tmp_path / "model", tmp_path)):
        for name in ("asked for", "found out"):
            assert seen[name] == seen["plain"]
            assert seen[f"{name}: cache"] == len(seen["plain"]) - 1
        assert len(seen["plain"]) == [10 + 12, 7 + 40][rank]
        assert "static cache" in seen["static"]
