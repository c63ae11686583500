"""Measuring end to end: prompts, forcing, ways in turn, figures by hand, profile, commands."""

from __future__ import annotations

import gc
import importlib.util
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_llama
from families import build

from ngramspec import Speculator, generate
from ngramspec.bench.e2e import Call, EndToEnd, Measured, Plan, by_model, first_difference, to_dict
from ngramspec.bench.forced import ForcedProcessor, forced_model
from ngramspec.bench.forwards import forward_seconds
from ngramspec.bench.machine import PeakMemory, machine
from ngramspec.bench.summary import summarize
from ngramspec.bench.tasks import (
    NOTHING,
    TASKS,
    Prompt,
    fit,
    messages,
    of_length,
    read_tasks,
    unpredictable,
)
from ngramspec.bench.ways import PLAIN, Caller, Way, forwards_of, usual_ways
from ngramspec.cli import main
from ngramspec.cli.bench_e2e import _as_chat, built_in

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
VOCAB = 97
rng = random.Random(5)
IDS = tuple(rng.randrange(1, VOCAB) for _ in range(40))  # 0 would be padding
TEXT = (*IDS[3:30], 7, 8, *IDS[10:25])


def prompt(task="copy", id="0", ids=IDS, text=TEXT, length=None):
    return Prompt(task, id, ids, text, length)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


# Prompts


def test_prompts_of_texts_and_of_ids(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"group": "chat_turn2", "id": 1, "prompt": [1, 2, 3], "output": [4]}\n\n'
        '{"group": "code_edit", "id": "x", "prompt": "ab"}\n'
    )
    found = read_tasks(path, lambda text: [ord(each) for each in text])
    assert found == [Prompt("chat", "1", (1, 2, 3)), Prompt("code_edit", "x", (97, 98))]
    for bad in ('{"group": "g", "id": 1}', "[]", '{"group": "g", "id": 1, "prompt": [1.5]}', "{"):
        path.write_text(bad)
        with pytest.raises(ValueError, match="line 1"):
            read_tasks(path, list)
    path.write_text("\n")
    with pytest.raises(ValueError, match="no prompt"):
        read_tasks(path, list)


def test_turns_are_told_by_their_marks():
    assert messages("def f():") == []
    assert messages("[INST] One. [/INST] Two.</s>[INST] Three [/INST]") == [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three"},
    ]


def test_lengths_are_those_of_the_task_or_those_given():
    prompts = [Prompt(task, "", (0,) * n) for task in ("chat", "code_edit") for n in (299, 701)]
    assert [each.task for each in of_length(prompts)] == ["code_edit"]
    assert [len(each.ids) for each in of_length(prompts, (299, 299))] == [299, 299]


def test_fitted_prompts_keep_their_end_and_get_others_in_front():
    prompts = [Prompt("t", "a", (1, 2, 3)), Prompt("t", "b", (4, 5))]
    assert [each.ids for each in fit(prompts, 2)] == [(2, 3), (4, 5)]
    assert [each.ids for each in fit(prompts, 6)] == [(3, 4, 5, 1, 2, 3), (5, 1, 2, 3, 4, 5)]
    assert {each.length for each in fit(prompts, 6)} == {6}


def test_unpredictable_text_is_random_repeatable_and_spares_some_ids():
    prompts = [Prompt(task, str(n), (n,)) for task in "ab" for n in range(2)]
    made = unpredictable(prompts, 50, 10, never=[3])
    assert [each.id for each in made] == ["a 0", "b 0", "a 1", "b 1"]
    assert {each.task for each in made} == {NOTHING}
    assert made == unpredictable(prompts, 50, 10, never=[3])
    assert len({each.text for each in made}) == 4
    assert set().union(*(each.text for each in made)) == set(range(10)) - {3}


# Forcing


WAYS = {
    "plain": {},
    "lookup": {"prompt_lookup_num_tokens": 4},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_forced_model_says_the_text_however_it_is_decoded(model, way, ours):
    if ours and way == "lookup":
        return
    kind = type(model)
    call = (lambda **them: generate(model, **them)) if ours else model.generate
    inputs = {"input_ids": torch.tensor([IDS]), "do_sample": False, "max_new_tokens": len(TEXT)}
    with forced_model(model, 256) as set_text:
        for text in (TEXT, TEXT[::-1]):
            set_text([*IDS, *text])
            assert call(**inputs, **WAYS[way])[0, len(IDS) :].tolist() == list(text)
    assert type(model) is kind
    assert "_forced_targets" not in dict(model.named_buffers())
    assert call(**inputs)[0, len(IDS) :].tolist() != list(TEXT)


@pytest.mark.parametrize(
    ("speculator", "cache"),
    [({"tree": 16}, {}), ({"tree": 16}, "static"), ({"width": 8}, "static")],
)
def test_a_forced_model_is_decoded_as_its_class_is(model, speculator, cache):
    way = Way("ours", {"cache_implementation": cache} if cache else {}, speculator)
    with forced_model(model, 256) as set_text:
        set_text([*IDS, *TEXT])
        outcome = Caller(model).call(way, IDS, len(TEXT))
    assert outcome.tokens == list(TEXT)
    assert outcome.stats["chains"] == {}
    assert max(outcome.widths) > 4


def test_a_forced_model_goes_by_position_not_by_order(model):
    with forced_model(model, 64) as set_text, torch.no_grad():
        set_text(list(range(10, 40)))
        tree = torch.tensor([[0, 1, 1, 2]])  # two siblings
        logits = model(input_ids=torch.zeros_like(tree), position_ids=tree).logits
        assert logits.argmax(-1).tolist() == [[11, 12, 12, 13]]
        with pytest.raises(ValueError, match=r"2\.\.64 tokens, got 65"):
            set_text(range(65))


def test_a_forced_processor_goes_by_length(model):
    forced = ForcedProcessor(2, (5, 6))
    scores = torch.zeros(1, 9)
    for length, token in ((2, 5), (3, 6), (4, 6)):
        assert forced(torch.zeros(1, length), scores).argmax().item() == token


# Figures


def call(way, seconds, new=11, widths=None, emitted=10, prompt="p", **changes):
    fields = {"task": "t", "length": None, "prompt": prompt, "prompt_tokens": 5, "way": way}
    fields |= {"repeat": 0, "seconds": seconds, "new_tokens": new, "first_difference": None}
    fields |= {"peak": 100, "widths": widths or {}, "emitted": emitted, "stats": None}
    return Call(**(fields | changes))


def test_figures_by_hand():
    """Plain: 10 steps of 1 s behind a prefill of 1 s. Ours: 4 steps, in which 10 are emitted."""
    measured = Measured(prefills={("t", None, "p"): [1.0]})
    measured.costs["t", None] = (7, {1: 0.5, 2: 0.6, 4: 0.75})
    measured.calls = [call(PLAIN, 11.0, widths={1: 10})] * 3
    measured.calls += [call("ours", s, widths={4: 2, 1: 2}) for s in (4.0, 6.0, 100.0)]
    plain, ours = summarize(measured)
    assert plain["ratio"] == plain["limit_share"] == plain["tokens_per_call"] == 1.0
    assert ours["tokens_per_second"] == pytest.approx(11 / 6)
    assert ours["ratio"] == ours["ratio_worst"] == pytest.approx(11 / 6)
    assert ours["decode_ratio"] == pytest.approx(10 / 5)
    assert ours["tokens_per_call"] == 2.5
    assert ours["mean_cost"] == pytest.approx(1.25)
    assert ours["limit_share"] == pytest.approx(2 / (2.5 / 1.25))
    assert ours["same"] == ours["prompts"] == 1
    measured.static = ["ours"]
    assert summarize(measured)[1]["limit_share"] is None


def test_ratios_are_of_the_same_round():
    """A machine twice as slow in one of three rounds, for both."""
    measured = Measured(prefills={("t", None, "p"): [1.0]})
    for repeat, slow in enumerate((1.0, 2.0, 1.0)):
        measured.calls.append(
            call(PLAIN, 10.0 * slow + 1, repeat=repeat, emitted=10, widths={1: 10})
        )
        ours = call("ours", 8.0 * slow + 1, repeat=repeat, emitted=10, widths={1: 10})
        measured.calls.append(replace(ours, seconds=99.0) if repeat == 2 else ours)
    row = summarize(measured)[1]
    assert row["ratio"] == pytest.approx(11 / 9)
    assert row["decode_ratio"] == pytest.approx(10 / 8)


def test_figures_of_several_prompts():
    measured = Measured(prefills={("t", None, name): [0.0] for name in "abc"})
    for name, seconds in (("a", 5.0), ("b", 2.5), ("c", 20.0)):
        measured.calls.append(call(PLAIN, 10.0, prompt=name))
        measured.calls.append(call("ours", seconds, prompt=name, peak=None))
    measured.calls.append(call("ours", 20.0, prompt="c", peak=None, first_difference=4))
    row = summarize(measured)[1]
    assert row["ratio"] == pytest.approx((2 * 4 * 0.5) ** (1 / 3))
    assert (row["ratio_median"], row["ratio_worst"]) == (2.0, 0.5)
    assert row["first_differences"] == {"c": 4}
    assert (row["same"], row["peak_bytes"], row["limit_share"]) == (2, None, None)


def test_the_first_difference():
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1], [1, 3]) == 1


# Measuring


def test_ways_take_turns_and_what_cannot_run_is_named(model, monkeypatch):
    order = []
    plain_call = Caller.call

    def noted(self, way, ids, new, **arguments):
        order.append((way.name, new))
        outcome = plain_call(self, way, ids, new, **arguments)
        return replace(outcome, seconds=1.0 + sum(outcome.widths.values()))  # a second a forward

    monkeypatch.setattr(Caller, "call", noted)
    ways = usual_ways(lookups=[4], speculators=[{"colour": 1}])
    bench = EndToEnd(model, ways, Plan(repeats=2, new=20, least=15, cost_repeats=1))
    short = prompt(id="short", text=TEXT[:9])
    measured = bench.run([short, prompt(), prompt(id="1"), prompt(NOTHING, "r")])
    names = [name for name, _ in order]
    assert names[:4] == [PLAIN, "prompt lookup 4", "ngramspec", "ngramspec, colour 1"]
    assert names[4:] == [
        *[PLAIN, PLAIN],  # the short one, and the check of the first
        *[PLAIN, PLAIN, "prompt lookup 4", "ngramspec"],
        *[PLAIN, "prompt lookup 4", "ngramspec", PLAIN],
        *[PLAIN, PLAIN, "prompt lookup 4", "ngramspec", PLAIN],
        *[PLAIN, "ngramspec", PLAIN, "prompt lookup 4"],
        *[PLAIN, PLAIN, PLAIN, "prompt lookup 4", "ngramspec"],
        *[PLAIN, "prompt lookup 4", "ngramspec", PLAIN],
    ]
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


def test_lookups_forwards_are_counted(model):
    """Drafts of one token, always right: two tokens a call."""
    with forced_model(model, 256) as set_text:
        set_text([*IDS, *IDS])
        lookup = Way("lookup", {"prompt_lookup_num_tokens": 1})
        outcome = Caller(model).call(lookup, (*IDS, *IDS[:2]), 21)
    assert outcome.tokens == list(IDS[2:23])
    assert sum(width * count for width, count in outcome.widths.items()) == outcome.emitted
    assert outcome.widths[2] == 9
    assert outcome.emitted in (19, 20)  # the first forward may draft already


def test_a_steps_width_is_that_of_its_forward(model):
    events = []
    speculator = Speculator(on_step=events.append)
    prompt = torch.tensor([IDS])
    with forced_model(model, 256) as set_text:
        set_text([*IDS, *TEXT])
        with forwards_of(model, watch=True) as seen:
            generate(model, prompt, speculator=speculator, max_new_tokens=40, do_sample=False)
    assert [event.width for event in events[1:]] == [width for width, _ in seen[1:]]
    assert max(event.width for event in events) > 2


def test_a_new_speculator_each_call_unless_kept(model):
    way = usual_ways()[-1]
    for keep, count in ((False, 2), (True, 1)):
        caller = Caller(model, keep=keep)
        made = [caller._speculator(way) for _ in range(2)]
        assert len({id(each) for each in made}) == count
        runs = [caller.call(way, IDS, 5).stats["runs"] for _ in range(2)]
        assert runs == [1, 1]


def test_ways_are_named_for_what_their_speculator_is_given():
    named = {"ngramspec": {}, "ngramspec, tree 4": {"tree": 4}, "ngramspec, gamma 8": {"gamma": 8}}
    named |= {"ngramspec, chains": {"tree": None}, "ngramspec, width 8": {"width": 8}}
    ways = usual_ways(lookups=[], widths=[8], trees=[4], chains=True, speculators=[{"gamma": 8}])
    assert {way.name: way.speculator for way in ways[1:]} == named


def test_compiling_that_did_not_happen_is_no_figure(model):
    ways = [Way(PLAIN), Way("eager", {"cache_implementation": "static"}, {}, compiled=True)]
    bench = EndToEnd(model, ways, Plan(repeats=1, new=9, least=2, cost_repeats=1))
    bench.caller._compiling = lambda way: {}
    measured = bench.run([prompt()])
    assert "was not compiled" in measured.skipped["eager"]


def test_trees_that_were_none_are_no_figure():
    ids = tuple(1 + each % 60 for each in IDS)
    sliding = build("mistral sliding")
    ways = usual_ways(lookups=[], trees=[4])
    bench = EndToEnd(sliding, ways, Plan(repeats=1, new=9, least=2, cost_repeats=1))
    measured = bench.run([Prompt("t", "0", ids)])
    assert "its drafts were no trees: " in measured.skipped["ngramspec, tree 4"]
    assert {each.way for each in measured.calls} == {PLAIN, "ngramspec"}


def test_a_call_that_compiled_is_done_again(model, monkeypatch):
    graphs = iter([0, 0, 5, 6, 7, 7, 8, 8, *[8] * 99])
    monkeypatch.setattr("ngramspec.bench.e2e.compilations", lambda: next(graphs))
    bench = EndToEnd(model, [Way(PLAIN)], Plan(new=9))
    assert bench.timed(bench.ways[0], prompt()).tokens == list(TEXT[:9])
    assert bench.measured.compiling == {}
    bench.timed(bench.ways[0], prompt())
    assert bench.measured.compiling == {PLAIN: 1}
    monkeypatch.setattr("ngramspec.bench.e2e.compilations", iter(range(99)).__next__)
    with pytest.raises(RuntimeError, match="plain compiles anew in each of 16 calls"):
        bench.timed(bench.ways[0], prompt())


def test_a_text_that_was_not_forced_stops_the_measurement(model):
    from contextlib import nullcontext

    bench = EndToEnd(model, [Way(PLAIN)], Plan(new=9, least=2), forcing=lambda p: nullcontext({}))
    with pytest.raises(RuntimeError, match="copy 0: the forced text did not come out"):
        bench.run([prompt()])
    with pytest.raises(ValueError, match="no prompt"):
        bench.run([])


@pytest.mark.parametrize("same", [False, True])
def test_all_ways_may_say_what_plain_says(model, same):
    ways = [Way("plain"), Way("other words", {"repetition_penalty": 5.0}), Way("ours", {}, {})]
    plan = Plan(repeats=1, new=20, least=20, cost_repeats=1, same_text=same)
    with forced_model(model, 256) as set_text:
        measured = EndToEnd(model, ways, plan, forcing=by_model(set_text)).run(
            [Prompt("t", "1", IDS)]
        )
        own = model.generate(torch.tensor([IDS]), max_new_tokens=20, do_sample=False)
    assert own.shape[1] == len(IDS) + 20
    found = {each.way: each.first_difference for each in measured.calls}
    assert found["plain"] is None
    assert found["ours"] is None
    assert (found["other words"] is None) == same


def test_forwards_are_timed_behind_their_context(model, monkeypatch):
    lengths = []
    plain = type(model).forward

    def noted(self, *args, **kwargs):
        width = kwargs["input_ids"].shape[1]
        lengths.append((width, kwargs["past_key_values"].get_seq_length()))
        if width == 3:
            time.sleep(0.02)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", noted)
    seconds = forward_seconds(model, 50, [3, 1, 3], repeats=2)
    assert lengths == [(50, 0)] + [(1, 50), (3, 50)] * 3
    assert seconds[3] > 0.02 > seconds[1] > 0


def test_memory_is_the_peak_since_it_was_reset():
    memory = PeakMemory(torch.device("cpu"))
    gc.collect()  # or what tests before left might be freed in between
    memory.reset()
    before = memory.read()
    if before is None:
        pytest.skip("the system cannot set the high-water mark back")
    torch.ones(256 << 20, dtype=torch.uint8)
    assert 150e6 < memory.read() - before < 350e6
    memory.reset()
    assert memory.read() < before + 30e6
    assert machine()["packages"]["torch"] == torch.__version__


# Commands


class Characters:
    """A tokenizer: one token a character."""

    chat_template = None
    eos_token_id = None

    def __call__(self, text):
        return {"input_ids": [ord(each) % VOCAB for each in text]}

    def decode(self, tokens):
        return " ".join(map(str, tokens))


@pytest.fixture
def loaded(monkeypatch):
    loaded = SimpleNamespace(
        model=tiny_llama(vocab=VOCAB, positions=2048), tokenizer=Characters(), name="tiny"
    )
    monkeypatch.setattr("ngramspec.cli.models.load", lambda *args, **kwargs: loaded)
    return loaded


def test_bench_e2e_prints_writes_and_draws(loaded, tmp_path, capsys):
    traces, out, plots = tmp_path / "t.jsonl", tmp_path / "o.json", tmp_path / "plots"
    lines = [{"group": group, "id": 0, "prompt": list(IDS)} for group in ("chat", "summarization")]
    traces.write_text("\n".join(map(json.dumps, lines)))
    command = ["bench", "e2e", "--prompts", str(traces), "--tasks", "summarization", "nothing"]
    command += ["--lengths", "30", "90", "--repeats", "1", "--max-new-tokens", "24", "--least", "9"]
    command += ["--lookup", "5", "--speculator", '{"gamma": 3}', "--speculator", '{"colour": 1}']
    assert main([*command, "--json", str(out), "--plots", str(plots)]) == 0
    printed = capsys.readouterr().out
    assert "skipped: ngramspec, colour 1: TypeError: " in printed
    for word in ("summarization, 1 prompts of 90", "prompt lookup 5", "ngramspec, gamma 3"):
        assert word in printed
    assert "chat," not in printed
    written = json.loads(out.read_text())
    assert {row["length"] for row in written["summary"]} == {30, 90}
    assert {row["task"] for row in written["summary"]} == {"summarization", NOTHING}
    assert {each["way"] for each in written["calls"]} == {
        *(PLAIN, "prompt lookup 5", "ngramspec", "ngramspec, gamma 3")
    }
    assert all(row["same"] == row["prompts"] for row in written["summary"])
    assert written["command"].startswith("ngramspec")
    assert written["settings"]["repeats"] == 1
    assert {path.name for path in plots.iterdir()} == {
        "e2e-ratio-by-length.png",
        *(
            f"e2e-{what}-{length}.png"
            for what in ("ratio", "tokens-per-second", "tokens-per-call", "limit-share")
            for length in (30, 90)
        ),
        *(f"e2e-peak-bytes-{length}.png" for length in (30, 90)),
    }


def test_bench_e2e_has_texts_of_its_own(loaded, capsys):
    command = ["bench", "e2e", "--tasks", "code_edit", "--repeats", "1", "--max-new-tokens", "9"]
    assert main([*command, "--least", "200", "--lookup"]) == 0
    assert "code_edit: 1 prompts left out" in capsys.readouterr().out
    assert [each.task for each in built_in(loaded)] == [*TASKS[:-1]]


def test_chats_get_the_model_s_own_template(loaded, monkeypatch):
    class Chatty(Characters):
        chat_template = "messages"

        def decode(self, tokens):
            return "[INST] Say a [/INST]" if tokens[0] == 1 else "def f():"

        def apply_chat_template(self, messages, **arguments):
            assert messages == [{"role": "user", "content": "Say a"}]
            return {"input_ids": [7, 8, 9]}

    loaded.tokenizer = Chatty()
    assert _as_chat(Prompt("chat", "0", (1, 2)), loaded) == Prompt("chat", "0", (7, 8, 9))
    assert _as_chat(Prompt("code", "0", (2, 2)), loaded) == Prompt("code", "0", (2, 2))


def test_bench_profile_prints_and_writes(loaded, tmp_path, capsys):
    out = tmp_path / "o.json"
    command = ["bench", "profile", "--repeats", "1", "--max-new-tokens", "9", "--json", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "code_edit" in printed
    assert "rollback" in printed
    rows = json.loads(out.read_text())["rows"]
    assert [row["task"] for row in rows] == ["code_edit"] * 3 + [NOTHING] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be >= 1, got 0"),
        (["--max-new-tokens", "1"], "--max-new-tokens must be >= 2, got 1"),
        (["--tasks", "poetry"], "--tasks: 'poetry' is none of nothing, summarization"),
        (["--prompts", "nowhere.jsonl"], "--prompts: "),
        (["--chat"], "--chat needs --prompts, and a model that has a chat template"),
        (["--speculator", "{"], "not JSON: {"),
        (["--speculator", "[]"], "not a JSON object: []"),
        (["--device", "cuda:77"], "--device cuda:77: "),
    ],
)
def test_bad_arguments_are_one_line(loaded, capsys, arguments, message):
    try:
        code = main(["bench", "e2e", *arguments])
    except SystemExit as error:
        code = error.code
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


# The benchmark for GPUs


def run_gpu(monkeypatch, out, *arguments):
    spec = importlib.util.spec_from_file_location("gpu", GPU)
    gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu)
    command = ["gpu.py", "--device", "cpu", "--tiny", "--out", str(out), *arguments]
    monkeypatch.setattr(sys, "argv", command)
    code = gpu.main()
    return code, json.loads((out / "gpu.json").read_text())


def test_the_gpu_benchmark_runs_small_on_a_cpu(monkeypatch, tmp_path):
    few = ["--no-compile", "--new", "24", "--parts", "contenders", "syncs", "profile", "plots"]
    code, report = run_gpu(monkeypatch, tmp_path, *few)
    assert code == 0, [report[part] for part in few[4:]]
    rows = {(row["task"], row["way"]): row for row in report["contenders"]["summary"]}
    assert rows["code_edit", "ngramspec"]["tokens_per_call"] > 2
    assert rows[NOTHING, "ngramspec"]["tokens_per_call"] < 1.2
    assert all(row["same"] == row["prompts"] for row in rows.values())
    assert {each["task"] for each in report["contenders"]["against"]} >= {"code_edit", NOTHING}
    assert [each["median"] for each in report["syncs"]] == [1, 1]
    assert (tmp_path / "e2e-ratio.png").stat().st_size > 10_000


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("ngramspec.bench.syncs.host_syncs", None)
    code, report = run_gpu(monkeypatch, tmp_path, "--new", "9", "--parts", "syncs", "profile")
    assert code == 1
    assert "NoneType" in report["syncs"]["error"]
    assert len(report["profile"]) == 6


@pytest.mark.slow
def test_the_whole_gpu_benchmark_runs_small_on_a_cpu(monkeypatch, tmp_path):
    begin = time.process_time()
    code, report = run_gpu(monkeypatch, tmp_path)
    assert code == 0
    assert set(report["costs"]) == {"16", "64", "256"}
    assert len(report["costs"]["16"]) == 128
    ways = {row["way"] for row in report["contenders"]["summary"]}
    assert "plain, compiled" in ways
    assert (tmp_path / "cost.png").exists()
    assert time.process_time() - begin < 120  # on one core, whatever else runs there
