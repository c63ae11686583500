"""Summaries by an encoder-decoder as users make them: with beams, penalties and in batches.

    python -m benchmarks summaries --traces traces.jsonl --json summaries.json

The model has the shape of BART-large-CNN and random weights. It is forced to a summary of each
row's article, the recorded one or, with ``--extract``, every second sentence of the article: the
logit of the summary's next token is raised, and that of another token of the article by almost as
much at some positions, so that beams differ in a few tokens. All calls
have the settings of that model's checkpoint. The baseline, ngramspec and, where it runs, prompt
lookup take turns. Times are of a whole call, with the encoder. Compare the ratios of one turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness import add_run, add_traces, padded, show_and_write
from ngramspec import DecodeStats, Speculator, generate
from ngramspec.cli.options import CommandOptions
from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.hf_model.compat.positions import given_positions
from ngramspec.measure.calls import PLAIN, take_turns
from ngramspec.measure.traces import read_traces

OURS, LOOKUP = "ours", "prompt lookup"
LARGE = {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "vocab_size": 50264}
SETTINGS: dict[str, Any] = {"do_sample": False, "length_penalty": 2.0, "no_repeat_ngram_size": 3}
SETTINGS |= {"early_stopping": True, "min_length": 0, "forced_bos_token_id": None}
EOS, PAD, SPECIAL_IDS = 2, 1, 4  # recorded ids are moved up by the number of special ones
FULL_STOP = 30  # the token of SmolLM2
LONGEST_ARTICLE = 1000  # tokens; the model has 1024 positions
LONGEST_SUMMARY = 142  # tokens, as in the checkpoint
# Logits of the recorded and of the other token, above the logarithm of the other tokens' sum.
SURE, UNSURE = (8.0, 4.0), (7.0, 6.3)
UNSURE_SHARE = 0.25  # of positions; not measured
WARM_UP_TOKENS = 4  # of a call of each configuration before the turns


def build(layers: int, dtype: torch.dtype) -> Any:
    """The model, with ``layers`` layers in the encoder and in the decoder."""
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    sizes = LARGE | {"encoder_layers": layers, "decoder_layers": layers}
    model = BartForConditionalGeneration(BartConfig(**sizes)).to(dtype).eval()
    model.generation_config.update(eos_token_id=EOS, pad_token_id=PAD, forced_eos_token_id=None)
    return model


def recorded(
    path: Path, group: str, rows: int, *, extract: bool
) -> list[tuple[list[int], list[int]]]:
    """The first articles of a group, with their recorded summaries or with extracts of them."""
    found = [each for each in read_traces(path) if each.group == group]
    if len(found) < rows:
        raise ValueError(f"{path} has {len(found)} traces of the group {group!r}, not {rows}")
    pairs = []
    for each in found[:rows]:
        article = each.prompt.tolist()[-LONGEST_ARTICLE:]
        summary = extracted(article) if extract else each.output.tolist()
        pairs.append((moved(article), moved(summary[: LONGEST_SUMMARY - 1])))
    return pairs


def moved(tokens: Sequence[int]) -> list[int]:
    """Recorded tokens, moved up by the number of special ones."""
    return [token + SPECIAL_IDS for token in tokens]


def extracted(article: Sequence[int]) -> list[int]:
    """Every second sentence of an article, without the first and the text after the last."""
    ends = [place + 1 for place, token in enumerate(article) if token == FULL_STOP]
    sentences = [list(article[begin:end]) for begin, end in pairwise(ends)]
    return [token for sentence in sentences[::2] for token in sentence]


class Texts:
    """The recorded summaries of a batch's rows, by the position in the decoder."""

    def __init__(
        self, model: Any, inputs: dict[str, torch.Tensor], pairs: list[tuple[list[int], list[int]]]
    ) -> None:
        length, make = LONGEST_SUMMARY + 512, torch.Generator().manual_seed(1)
        self.wanted = torch.full((len(pairs), length), EOS)
        self.others = torch.full((len(pairs), length), EOS)
        self.raised = torch.tensor([SURE]).expand(length, 2).repeat(len(pairs), 1, 1)
        for row, (article, summary) in enumerate(pairs):
            self.wanted[row, : len(summary)] = torch.tensor(summary)
            places = torch.randint(len(article), (length,), generator=make)
            self.others[row] = torch.tensor(article)[places]
            unsure = torch.rand(length, generator=make) < UNSURE_SHARE
            self.raised[row, unsure] = torch.tensor(UNSURE)
        began = perf_counter()
        with torch.inference_mode():
            self.marks = model.get_encoder()(**inputs)[0][:, -1].float()  # (rows, d)
        self.encoder_seconds = perf_counter() - began

    def force(self, logits: torch.Tensor, encoded: torch.Tensor, positions: torch.Tensor) -> None:
        """Raise logits in place."""
        row = torch.cdist(encoded[:, -1].float(), self.marks).argmin(dim=1)[:, None]
        total = logits.float().logsumexp(dim=-1)
        for which, tokens in enumerate((self.others, self.wanted)):
            index = tokens[row, positions].expand(logits.shape[:2])[..., None]
            raised = total + self.raised[row, positions, 1 - which]
            logits.scatter_(-1, index, raised[..., None].to(logits.dtype))


@contextmanager
def forced(model: Any, texts: Texts) -> Iterator[None]:
    """Force a model to each row's text. Its class is replaced by one of the same name."""
    kind = type(model)

    def forward(self: Any, **kwargs: Any) -> Any:
        positions, ids = given_positions(), kwargs["decoder_input_ids"]
        if positions is None:
            before = cache_of(kwargs).get_seq_length()
            positions = (torch.arange(ids.shape[1]) + before)[None]
        outputs = kind.forward(self, **kwargs)
        texts.force(outputs.logits, kwargs["encoder_outputs"][0], positions)
        return outputs

    members = {"forward": forward, "__module__": kind.__module__}
    model.__class__ = type(kind.__name__, (kind,), members)
    try:
        yield
    finally:
        model.__class__ = kind


def measure(
    model: Any, pairs: list[tuple[list[int], list[int]]], beams: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """The median speedups over the baseline of one batch, and ngramspec's counts."""
    inputs = padded([article for article, _ in pairs], PAD)
    new = min(arguments.max_new_tokens, LONGEST_SUMMARY)
    given: dict[str, Any] = SETTINGS | {"num_beams": beams, "max_new_tokens": new} | inputs

    def plain(**more: Any) -> tuple[torch.Tensor, DecodeStats]:
        return model.generate(**given | more), DecodeStats()

    def speculate(**more: Any) -> tuple[torch.Tensor, DecodeStats]:
        speculator = Speculator()
        return generate(model, speculator=speculator, **given | more), speculator.stats

    calls: dict[str, Callable[..., tuple[torch.Tensor, DecodeStats]]]
    calls = {PLAIN: plain, OURS: speculate}
    if len(pairs) == beams == 1:
        calls[LOOKUP] = partial(plain, prompt_lookup_num_tokens=10)
    texts = Texts(model, inputs, pairs)
    with forced(model, texts):
        for call in calls.values():
            call(max_new_tokens=WARM_UP_TOKENS)
        turns = take_turns(calls, arguments.repeats, warm_up=0, first=0)
    (text, _), (ours, stats) = turns.last(PLAIN), turns.last(OURS)
    return {
        "batch": len(pairs),
        "beams": beams,
        "speedup": turns.speedup(OURS),
        "worst": min(turns.speedups(OURS)),
        "lookup": turns.speedup(LOOKUP) if LOOKUP in calls else None,
        "encoder_share": texts.encoder_seconds / turns.median(PLAIN),
        "tokens_per_call": stats.tokens_per_call,
        "same": text.shape == ours.shape and bool((text == ours).all()),
        "seconds": turns.seconds,
    }


def add_arguments(options: CommandOptions) -> None:
    add_traces(options)
    options.add("--group", default="summarization")
    options.flag("--extract", "summaries of the article's own sentences")
    options.add("--sizes", type=int, nargs="+", default=[1, 8], help="rows of a batch")
    options.add("--beams", type=int, nargs="+", default=[1, 4])
    options.count("--batches", 3, "batches of each size")
    options.count("--layers", LARGE["decoder_layers"], "layers of encoder and decoder")
    add_run(options, repeats=3, new=LONGEST_SUMMARY)


def run(arguments: argparse.Namespace) -> int:
    model = build(arguments.layers, getattr(torch, arguments.dtype))
    rows_needed = arguments.batches * max(arguments.sizes)
    pairs = recorded(arguments.traces, arguments.group, rows_needed, extract=arguments.extract)
    rows = (
        measure(model, pairs[start : start + size], beams, arguments)
        for beams in arguments.beams
        for size in arguments.sizes
        for start in range(0, arguments.batches * size, size)
    )
    return show_and_write(arguments, rows)
