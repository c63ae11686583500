"""Calls on a GPU, pretended or real, and on the CPU: their texts, and how often the host waits.

A case's baseline is plain ``generate`` with the same arguments. A step lasts from the beginning of
a forward to that of the next one. The first step begins with the second forward: before it, caches
are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from families import ENCODER_DECODER, FAMILIES, VARIED, build
from gpu.device import COPY, Gpu, Seen, pretended
from gpu.real import RealGpu
from layer_states import model_of
from wrapping import letters

from ngramspec import Corpus, SharedStore, Speculator, enable, generate
from ngramspec.decoding.observer import Observer
from ngramspec.measure.forwards import forced_model
from ngramspec.stepwise import JointSteps, open_generation

NEW = 18  # tokens of a call
NEAR = 1e-3  # a difference of float32 scores that another kernel's rounding may reverse
TEXT = (5, 6, 7, 8, 9, 5, 6, 7, 10, 11, 5, 6, 7, 8)
OTHER = (20, 21, 22, 20, 21, 23, 24, 20, 21)
ONE, LONG, EQUAL = (TEXT,), ((*TEXT, *OTHER),), (TEXT, TEXT[::-1])
FOUR = (TEXT, OTHER, TEXT[3:], OTHER[2:] + TEXT)
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}
STATIC = {"cache_implementation": "static", "disable_compile": True}
SCORES = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
STRINGS = {"stop_strings": ["zz~"], "tokenizer": letters}
PROCESSED = {
    **{"repetition_penalty": 1.2, "no_repeat_ngram_size": 4, "min_new_tokens": 9},
    **{"bad_words_ids": [[9], [5, 6]], "eos_token_id": [43, 44], "begin_suppress_tokens": [7]},
    **{"sequence_bias": [[[3], -3.0], [[5, 8], 2.0]], "exponential_decay_length_penalty": (5, 1.1)},
}
Call = Callable[[Any, Speculator, dict[str, Any]], Any]
OneGpu = Gpu | RealGpu


class Favour:
    """A caller's own processor."""

    def __call__(self, input_ids, scores):
        return scores.index_add(1, input_ids[:, -1] % 61, torch.ones_like(scores[:, :1]))


class Seventeen:
    """A caller's own criterion, which looks at the last token."""

    def __call__(self, input_ids, scores, **_):
        return input_ids[:, -1] == 117


class Streamer:
    """Looks at all tokens, on the CPU."""

    def put(self, value):
        assert value.device.type == "cpu"
        value.tolist()

    def end(self):
        return None


class AsOnGpu(Observer):
    """Lets ours on the CPU sample at all positions at once, as on a GPU."""

    one_transfer = True


# Ways to call


def _generate(model, speculator, kwargs):
    return generate(model, speculator=speculator, **kwargs)


def _enabled(model, speculator, kwargs):
    kwargs.pop("reference_ids")
    with enable(model, speculator):
        return model.generate(**kwargs)


def _stored(model, speculator, kwargs):
    """With what an earlier call may have left in a shared store."""
    (text,) = np.array(kwargs.pop("reference_ids"), np.int32)
    store = SharedStore(1 << 20)["n"]
    request = store.request()
    request.begin(text[:1])
    request.append(text[1:])
    request.finish()
    return generate(model, speculator=speculator, stores=[store], **kwargs)


def _with_corpus(model, speculator, kwargs):
    with TemporaryDirectory() as folder:
        corpus = Corpus.build(np.array(kwargs.pop("reference_ids"), np.int32), f"{folder}/c.ngc")
        return generate(model, speculator=speculator, stores=[corpus], **kwargs)


def _forced(model, speculator, kwargs):
    """Another text, which the model is made to say."""
    with forced_model(model, 256) as set_text:
        set_text([*TEXT, *TEXT[:9], *OTHER, *TEXT[3:]])
        return generate(model, speculator=speculator, **kwargs)


def _embedded(model, speculator, kwargs):
    ids = kwargs.pop("input_ids")
    with torch.no_grad():
        embeddings = torch.nn.functional.embedding(ids, model.get_input_embeddings().weight.clone())
    out = generate(model, speculator=speculator, inputs_embeds=embeddings, **kwargs)
    return torch.cat((ids, out), dim=1)


def _open(model, speculator, kwargs):
    tokens = kwargs["input_ids"].tolist()[0]
    with open_generation(model, speculator=speculator, **kwargs) as run:
        while not run.finished:
            tokens += run.step()
    return torch.tensor([tokens], device="cpu")


def _joint(model, speculator, kwargs):
    other = {name: kwargs[name][:, 3:] for name in ("input_ids", "attention_mask")}
    found = [each["input_ids"].tolist()[0] for each in (kwargs, other)]
    runs = [open_generation(model, speculator=speculator, **kwargs | own) for own in ({}, other)]
    for run, tokens in zip(runs, found, strict=True):
        tokens += run.step()
    joint = JointSteps(model)
    while not any(run.finished for run in runs):
        for added, tokens in zip(joint.step(runs), found, strict=True):
            tokens += added
    for run in runs:
        run.close()
    return torch.tensor(found[:1], device="cpu")


# The cases


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        args: arguments of ``generate``; a class among them is called for each call.
        spec: arguments of the Speculator.
        waits: how often a step may wait, at most.
        own: whether only ours on the CPU has the text, because the baseline draws others.
        default: whether the GPU is torch's default device.
        host: whether the prompt is on the CPU.
    """

    family: str = "llama"
    rows: tuple[tuple[int, ...], ...] = ONE
    args: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    waits: int = 1
    own: bool = False
    call: Call = _generate
    default: bool = False
    host: bool = False


CASES = {
    "greedy": Case(),
    "greedy, gamma 5": Case(spec={"gamma": 5}),
    "greedy, no drafts": Case(spec={"drafter": "none"}),
    "tree": Case(spec={"tree": 12}),
    "tree of recycled tokens": Case(spec={"drafter": "recycle", "tree": 16}),
    "sampled": Case(args=SAMPLED),
    "sampled, gamma 5": Case(args=SAMPLED, spec={"gamma": 5}),
    "sampled, tree": Case(args=SAMPLED, spec={"tree": 12}),
    "sampled, own generator": Case(args=SAMPLED | {"generator": torch.Generator}),
    "sampled drafts": Case(
        args=SAMPLED, spec={"drafter": "ngram(sample=true)", "gamma": 4}, own=True
    ),
    "batch": Case(rows=FOUR),
    "batch, no padding": Case(rows=EQUAL),
    "batch, tree": Case(rows=FOUR, spec={"tree": 8}),
    "batch, rows leave": Case(rows=FOUR, args={"eos_token_id": [9, 30, 31]}),
    "batch, sampled": Case(rows=FOUR, args=SAMPLED, spec={"gamma": 4}),
    "batch, sampled scores": Case(rows=FOUR, args=SAMPLED | SCORES | {"eos_token_id": [9, 30, 31]}),
    "batch, streamer": Case(rows=FOUR, args={"streamer": Streamer}),
    "batch, own criterion": Case(rows=FOUR, args={"stopping_criteria": [Seventeen]}, waits=9),
    "batch, processors": Case(rows=FOUR, args=PROCESSED),
    "processors": Case(args=PROCESSED, spec={"tree": 12}),
    "sampled, processors": Case(args=PROCESSED | SAMPLED | {"top_h": 0.9}, waits=2),
    "own processor": Case(args={"logits_processor": [Favour]}, waits=9),
    "own criterion": Case(args={"stopping_criteria": [Seventeen]}, waits=9),
    "stop strings": Case(args=STRINGS),
    "batch, stop strings": Case(rows=FOUR, args=STRINGS | {"eos_token_id": 60}),
    "streamer": Case(args={"streamer": Streamer}),
    "scores": Case(args=SCORES),
    "3 beams": Case(args={"num_beams": 3}),
    "3 beams, scores": Case(args={"num_beams": 3} | SCORES, waits=2),
    "static cache": Case(args=STATIC),
    "static cache, width 8": Case(args=STATIC, spec={"width": 8}),
    "static cache, tree": Case(args=STATIC, spec={"tree": 12}),
    "windows": Case("mistral sliding", LONG),
    "windows, tree": Case("mistral sliding", LONG, spec={"tree": 12}),
    "windows, batch": Case("gemma2 hybrid", FOUR),
    "chunks": Case("llama4 (chunks)", LONG),
    "experts": Case("mixtral (experts)"),
    "recurrent": Case("Lfm2ForCausalLM"),
    "recurrent, 3 beams": Case("Qwen3NextForCausalLM", args={"num_beams": 3}),
    "encoder-decoder": Case("t5", waits=2),
    "encoder-decoder, batch": Case("t5", FOUR, waits=3),
    "assistant": Case(args={"assistant_model": None}),
    "default device": Case(default=True),
    "default device, windows, tree": Case("mistral sliding", LONG, spec={"tree": 12}, default=True),
    "prompt on the CPU": Case(host=True),
    "prompt on the CPU, sampled": Case(args=SAMPLED, host=True),
    "prompt on the CPU, 3 beams": Case(args={"num_beams": 3}, host=True),
    "positions learned, tree": Case("gpt2", spec={"tree": 12}),
    "positions by ALiBi": Case("bloom (alibi)"),
    "windows and experts": Case("gpt-oss hybrid", LONG),
    "assistant, batch": Case(rows=EQUAL, args={"assistant_model": None}, waits=4),
    "prefill in chunks": Case(rows=LONG, args={"prefill_chunk_size": 16}),
    "corpus": Case(call=_with_corpus),
    "forced text": Case(call=_forced, own=True),
    "embeddings": Case(call=_embedded),
    "open_generation": Case(call=_open),
    "joint steps": Case(call=_joint, waits=2),
    "enabled": Case(call=_enabled),
    "shared store": Case(call=_stored),
}
COMPILED = {
    name: replace(
        CASES[name],
        args=CASES[name].args | {"cache_implementation": "static"},
        spec=CASES[name].spec | {"compiled": True},
    )
    for name in ("greedy", "greedy, gamma 5", "tree", "sampled", "batch")
}
COMPILED["width 8"] = replace(COMPILED["greedy"], spec={"compiled": True, "width": 8})
OURS = ("assistant_model", "generator")  # not for the baseline


def in_numbers(parts: list[Seen], prefills: int = 1) -> dict[str, Any]:
    """Waits before the prefill and until the next forward, and at most in a step, with copies."""
    steps = parts[prefills + 1 : -1]
    return {
        "before": sum(each.count() for each in parts[:prefills]),
        "prefill": parts[prefills].count(),
        "step": max((each.count() for each in steps), default=0),
        "copies": max((each.count(COPY) for each in steps), default=0),
        "steps": len(steps),
        "counts": [each.count() for each in parts],
        "places": dict(sum((each.places() for each in steps), start=Seen().places())),
    }


_models: dict[tuple[str, str], Any] = {}  # by family and the name of the GPU


def model_on(gpu: OneGpu | None, family: str) -> Any:
    """A family's model on a GPU, or on the CPU."""
    key = family, "cpu" if gpu is None else gpu.name
    if key not in _models and gpu is not None:
        _models[key] = model = gpu.put(model_on(None, family))
        if family != "assistant":  # what is tried once for each model is not part of a call
            generate(model, gpu.put(torch.tensor([TEXT], device="cpu")), max_new_tokens=2)
            assert family != "llama" or JointSteps(model).why_not is None
    elif key not in _models and family == "assistant":
        _models[key] = build("llama", num_hidden_layers=1)
    elif key not in _models:
        _models[key] = build(family) if family in FAMILIES else model_of(family)
    return _models[key]


def _arguments(case: Case, gpu: OneGpu | None, reference: Any) -> dict[str, Any]:
    padding = [[0] * (max(map(len, case.rows)) - len(row)) for row in case.rows]
    padded = zip(padding, case.rows, strict=True)
    ids = torch.tensor([[*before, *row] for before, row in padded], device="cpu")
    mask = (ids != 0).long()
    if gpu is not None and not case.host:
        ids, mask = gpu.put(ids), gpu.put(mask)
    kwargs = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0}
    kwargs |= {"do_sample": False} | (VARIED if case.family in ENCODER_DECODER else {})
    for name, value in case.args.items():
        if isinstance(value, list) and callable(value[0]):
            value = [value[0]()]
        kwargs[name] = value() if callable(value) else value
    if "assistant_model" in kwargs:
        kwargs["assistant_model"] = model_on(gpu, "assistant")
    if reference is None:
        return {name: value for name, value in kwargs.items() if name not in OURS}
    if "generator" in kwargs:
        kwargs["generator"] = (torch.Generator() if gpu is None else gpu.make()).manual_seed(3)
    return kwargs | {"reference_ids": reference}


def _text(out: Any) -> list[list[int]]:
    out = out if isinstance(out, torch.Tensor) else out.sequences
    return out.tolist()


def text_of(case: Case, gpu: OneGpu | None, reference: Any = None) -> list[list[int]]:
    """The case's text: the baseline's without a reference, else ours, which drafts from it."""
    model, kwargs = model_on(gpu, case.family), _arguments(case, gpu, reference)
    torch.manual_seed(3)
    if reference is None:
        return _text(model.generate(**kwargs))
    speculator = Speculator(**case.spec)
    speculator.observer = AsOnGpu() if gpu is None else None
    return _text(case.call(model, speculator, kwargs))


def noisy(text: list[list[int]], case: Case) -> list[list[int]]:
    """Texts from a little before their ends on, with some wrong tokens in them."""
    start = 0 if case.family in ENCODER_DECODER else max(map(len, case.rows)) - 4
    return [
        [(token + 1) % 61 if at % 9 == 8 else token for at, token in enumerate(row[start:])]
        for row in text
    ]


def measure(case: Case, kind: str = "cuda") -> dict[str, Any]:
    """The texts on a pretended GPU, ours and the one expected, and both sides' waits."""
    plain = text_of(case, None)
    reference = noisy(plain, case)
    expected = text_of(case, None, reference) if case.own else plain
    with pretended(kind) as gpu:
        return {"expected": expected} | measured(case, gpu, reference)


def measure_real(case: Case, gpu: RealGpu) -> dict[str, Any]:
    """The texts on a real GPU, and both sides' waits, after a call in which forwards are compiled.

    Sampled text is the baseline's on the GPU, whose random numbers are not the CPU's.
    """
    reference = noisy(text_of(case, None), case)
    measured(case, gpu, reference)
    found = measured(case, gpu, reference)
    if case.args.get("do_sample"):
        expected = found["baseline"]
    else:
        expected = text_of(case, None, reference if case.own else None)
    return {"expected": expected} | found


def measured(case: Case, gpu: OneGpu, reference: Any) -> dict[str, Any]:
    """Our ``text`` and the ``baseline``'s on a GPU, and both sides' waits."""
    found: dict[str, Any] = {}
    with torch.device(gpu.device) if case.default else nullcontext():
        model = model_on(gpu, case.family)
        for side, text, given in (("plain", "baseline", None), ("ours", "text", reference)):
            with gpu.watch(model) as seen:
                try:
                    found[text] = text_of(case, gpu, given)
                except RuntimeError as error:
                    found[text] = str(error)
            encodes = case.family in ENCODER_DECODER  # it, too, looks tokens up in the table
            more = {_joint: 1, _embedded: -1}
            prefills = 1 + encodes + (side == "ours" and more.get(case.call, 0))
            found[side] = in_numbers(seen.parts(), prefills)
    return found


def is_near_tie(case: Case, text: list[list[int]], expected: list[list[int]]) -> bool:
    """Whether the CPU's scores of the first different tokens of a greedy text are almost equal."""
    row, at = next(
        (row, at)
        for row, both in enumerate(zip(text, expected, strict=True))
        for at, (ours, known) in enumerate(zip(*both, strict=True))
        if ours != known
    )
    kwargs = _arguments(case, None, None) | SCORES
    out = model_on(None, case.family).generate(**kwargs)
    scores = out.scores[at - out.sequences.shape[1] + len(out.scores)][row]
    return bool(scores[expected[row][at]] - scores[text[row][at]] < NEAR)
