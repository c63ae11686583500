"""Ways to generate side by side: which calls are made, and what becomes of each."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from families import build
from forced_text import IDS, TEXT, prompt

from ngramspec import Speculator, generate
from ngramspec.measure.bench import BenchPlan, EndToEnd, forced_texts, summarize, to_dict
from ngramspec.measure.calls import (
    OWN_POSITIONS,
    PLAIN,
    Configuration,
    ModelCaller,
    forwards_of,
    usual_configurations,
)
from ngramspec.measure.forwards import forced_model
from ngramspec.measure.tasks import NOTHING, Prompt


def test_ways_take_turns_and_what_cannot_run_is_named(tiny, monkeypatch):
    order = []
    plain_call = ModelCaller.call

    def noted(self, way, ids, new, **arguments):
        order.append((way.name, new))
        outcome = plain_call(self, way, ids, new, **arguments)
        return replace(outcome, seconds=1.0 + sum(outcome.widths.values()))  # a second a forward

    monkeypatch.setattr(ModelCaller, "call", noted)
    ways = usual_configurations(lookups=[4], speculators=[{"colour": 1}])
    plan = BenchPlan(repeats=2, new=20, least=15, cost_repeats=1)
    short = prompt(id="short", text=TEXT[:9])
    prompts = [short, prompt(), prompt(id="1"), prompt(NOTHING, "r")]
    with forced_texts(tiny, prompts, plan) as set_text:
        measured = EndToEnd(tiny, ways, plan, set_text=set_text).run(prompts)
    names = {name for name, _ in order}
    assert names == {PLAIN, "prompt lookup 4", "ngramspec", "ngramspec, colour 1"}
    assert measured.left_out == {"copy": 1}
    (reason,) = measured.skipped.values()
    assert "unexpected keyword argument 'colour'" in reason
    json.dumps(to_dict(measured))
    rows = {(row["task"], row["way"]): row for row in summarize(measured)}
    assert all(row["same"] == row["prompts"] for row in rows.values())
    ours, lookup = rows["copy", "ngramspec"], rows["copy", "prompt lookup 4"]
    assert ours["tokens_per_call"] > 2 < lookup["tokens_per_call"]
    assert ours["decode_ratio"] == pytest.approx(ours["tokens_per_call"])
    assert ours["limit_share"] == pytest.approx(ours["mean_cost"])
    for each in measured.calls:
        assert each.new_tokens == 20
        assert each.first_difference is None
        assert sum(each.widths.values()) <= 19
        assert each.way != PLAIN or each.widths == {1: 19}


def test_lookup_does_not_learn_a_forced_text_from_the_forcing(tiny):
    """A logits processor that forces the text would cut its drafts where they are wrong."""
    plan = BenchPlan(repeats=1, new=35, least=15, cost_repeats=1)
    with forced_texts(tiny, [prompt()], plan) as set_text:
        bench = EndToEnd(tiny, usual_configurations(lookups=[10]), plan, set_text=set_text)
        measured = bench.run([prompt()])
    (lookup,) = (each for each in measured.calls if each.way == "prompt lookup 10")
    verified = sum((width - 1) * count for width, count in lookup.widths.items())
    accepted = lookup.emitted - sum(lookup.widths.values())
    assert verified > accepted > 0


def test_lookups_forwards_are_counted(tiny):
    """Drafts of one token, always right: two tokens a call."""
    with forced_model(tiny, 256) as set_text:
        set_text([*IDS, *IDS])
        lookup = Configuration("lookup", {"prompt_lookup_num_tokens": 1})
        outcome = ModelCaller(tiny).call(lookup, (*IDS, *IDS[:2]), 21)
    assert outcome.tokens == list(IDS[2:23])
    assert sum(width * count for width, count in outcome.widths.items()) == outcome.emitted
    assert outcome.widths[2] == 9
    assert outcome.emitted in (19, 20)  # the first forward may draft already


@pytest.mark.parametrize(("width", "cache"), [("fit", None), (16, "static")])
def test_a_steps_width_is_that_of_its_forward(tiny, width, cache):
    events = []
    speculator = Speculator(width=width, on_step=events.append)
    prompt = torch.tensor([IDS])
    asked = {"max_new_tokens": 40, "do_sample": False, "cache_implementation": cache}
    with forced_model(tiny, 256) as set_text:
        set_text([*IDS, *TEXT])
        with forwards_of(tiny, watch=True) as seen:
            generate(tiny, prompt, speculator=speculator, **asked)
    assert [event.width for event in events[1:]] == [width for width, _ in seen[1:]]
    assert max(event.width for event in events) > 2


def test_a_call_counts_only_itself(tiny):
    caller, own = ModelCaller(tiny), Configuration("own", {}, Speculator())
    for way in (usual_configurations()[-1], own):
        assert [caller.call(way, IDS, 5).stats.runs for _ in range(2)] == [1, 1]


def test_calls_begin_with_a_copy_of_the_kept_cache(tiny):
    ids, ways = IDS * 3, usual_configurations(lookups=[4])
    bench = EndToEnd(tiny, ways, BenchPlan(repeats=1, new=9, least=2, cost_repeats=1, cached=True))
    whole = [bench.call(way, Prompt("t", "0", ids), 9).tokens for way in ways]
    assert bench.run([Prompt("t", "0", ids)]).skipped.keys() == {"prompt lookup 4"}
    assert whole[0] == whole[2]
    for way, tokens in zip(bench.configurations, whole[::2], strict=True):
        with forwards_of(tiny, watch=True) as seen:
            assert bench.call(way, Prompt("t", "0", ids), 9).tokens == tokens
        assert OWN_POSITIONS <= seen[0][0] < len(ids)  # ngramspec drafts in the prefill, too


def test_ways_are_named_for_what_their_speculator_is_given():
    named = {"ngramspec": {}, "ngramspec, tree 4": {"tree": 4}, "ngramspec, gamma 8": {"gamma": 8}}
    named |= {"ngramspec, tree None": {"tree": None}, "ngramspec, width 8": {"width": 8}}
    ways = usual_configurations(
        lookups=[], widths=[8], speculators=[{"tree": 4}, {"tree": None}, {"gamma": 8}]
    )
    assert {way.name: way.speculator for way in ways[1:]} == named


def test_compiling_that_did_not_happen_is_no_figure(tiny):
    eager = Configuration("eager", {"cache_implementation": "static"}, {}, compiled=True)
    ways = [Configuration(PLAIN), eager]
    bench = EndToEnd(tiny, ways, BenchPlan(repeats=1, new=9, least=2, cost_repeats=1))
    bench.caller._compiling = lambda way: {}
    measured = bench.run([prompt(text=None)])
    assert "was not compiled" in measured.skipped["eager"]


def test_trees_that_were_none_are_no_figure():
    ids = tuple(1 + each % 60 for each in IDS)
    alibi = build("bloom (alibi)")
    ways = usual_configurations(lookups=[], speculators=[{"tree": 4}])
    bench = EndToEnd(alibi, ways, BenchPlan(repeats=1, new=9, least=2, cost_repeats=1))
    measured = bench.run([Prompt("t", "0", ids)])
    assert "drafts are chains: " in measured.skipped["ngramspec, tree 4"]
    assert {each.way for each in measured.calls} == {PLAIN, "ngramspec"}


def test_a_call_that_compiled_is_done_again(tiny, monkeypatch):
    graphs = iter([0, 0, 5, 6, 7, 7, 8, 8, *[8] * 99])
    monkeypatch.setattr("ngramspec.measure.bench.compilations", lambda: next(graphs))
    bench = EndToEnd(tiny, [Configuration(PLAIN)], BenchPlan(new=9))
    own = prompt(text=None)
    assert len(bench.timed(bench.configurations[0], own).tokens) == 9
    assert bench.measured.compiling == {}
    bench.timed(bench.configurations[0], own)
    assert bench.measured.compiling == {PLAIN: 1}
    monkeypatch.setattr("ngramspec.measure.bench.compilations", iter(range(99)).__next__)
    with pytest.raises(RuntimeError, match="plain compiles again in each of 16 calls"):
        bench.timed(bench.configurations[0], own)


def test_a_text_that_was_not_forced_stops_the_measurement(tiny):
    bench = EndToEnd(tiny, [Configuration(PLAIN)], BenchPlan(new=9, least=2))
    with pytest.raises(RuntimeError, match="copy 0: the forced text was not generated"):
        bench.run([prompt()])
    with pytest.raises(ValueError, match="no prompt"):
        bench.run([])


@pytest.mark.parametrize("same", [False, True])
def test_all_ways_may_say_what_plain_says(tiny, same):
    other = Configuration("other words", {"repetition_penalty": 5.0})
    ways = [Configuration("plain"), other, Configuration("ours", {}, {})]
    plan = BenchPlan(repeats=1, new=20, least=20, cost_repeats=1, same_text=same)
    with forced_model(tiny, 256) as set_text:
        measured = EndToEnd(tiny, ways, plan, set_text=set_text).run([Prompt("t", "1", IDS)])
        own = tiny.generate(torch.tensor([IDS]), max_new_tokens=20, do_sample=False)
    assert own.shape[1] == len(IDS) + 20
    found = {each.way: each.first_difference for each in measured.calls}
    assert found["plain"] is None
    assert found["ours"] is None
    assert (found["other words"] is None) == same
