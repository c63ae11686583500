"""Where speculative text first diverges from the baseline's, and how close to a tie that was.

A forward over several positions rounds differently from one over a single position. So two logits
that are nearly equal may swap their order, and from there on the texts differ. A divergence where
the logits are further apart than rounding explains is an error.

``--plain`` is the control: plain ``generate`` of left-padded batches against each prompt alone.

The logits are those that plain ``generate`` chose by: of its own forward, over one new position
after its cache, after the processors, in float32 as ``generate`` has them.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import renderers
from benchmarks.harness import padded, write
from benchmarks.texts import library_prompts
from ngramspec import Speculator, generate
from ngramspec.cli.options import (
    CommandOptions,
    UsageError,
    check_least,
    load_model,
    make_speculator,
)
from ngramspec.draft import Int32
from ngramspec.measure.calls import first_difference, ulps_apart
from ngramspec.measure.models import LoadedModel

MOST_ULPS = 8.0  # between logits whose order rounding may change, in bfloat16 and float16
MOST_FLOAT32 = 1e-4  # the same in float32, as a difference


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token where two texts diverge."""

    token: int
    plain: int
    speculative: int
    gap: float
    gap_ulps: float
    chosen_gap: float
    chosen_ulps: float

    def is_tie(self, dtype: torch.dtype) -> bool:
        """Whether rounding explains it, because the logits of both tokens are close."""
        if dtype == torch.float32:
            return self.chosen_gap < MOST_FLOAT32
        return self.chosen_ulps <= MOST_ULPS


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's text, generated with the baseline and in another way."""

    name: str
    tokens: int
    divergence: Divergence | None


def compare(
    model: Any,
    speculator: Speculator | None,
    prompts: Sequence[tuple[str, Int32]],
    tokens: int,
    rows: int = 1,
) -> Iterator[Comparison]:
    """Continue prompts greedily in left-padded batches, with the baseline and speculatively.

    Without a Speculator, the texts of the batches are compared with those of each prompt alone. No
    end-of-sequence token ends a text: all have ``tokens`` new ones. For that the model's own
    generation config is changed.
    """
    model.generation_config.eos_token_id = None
    pad = model.generation_config.pad_token_id or 0
    fixed: dict[str, Any] = {"do_sample": False, "max_new_tokens": tokens, "pad_token_id": pad}
    scored = {"return_dict_in_generate": True, "output_scores": True}
    other = partial(generate, model, speculator=speculator) if speculator else model.generate

    def inputs(texts: list[list[int]]) -> dict[str, Any]:
        return fixed | {name: each.to(model.device) for name, each in padded(texts, pad).items()}

    for start in range(0, len(prompts), rows):
        chosen = prompts[start : start + rows]
        batch = [ids.tolist() for _, ids in chosen]
        ours = other(**inputs(batch))[:, -tokens:].tolist()
        alone = [batch] if speculator else [[text] for text in batch]
        outputs = (model.generate(**inputs(texts), **scored) for texts in alone)
        plain = ((output, row) for output in outputs for row in range(len(output.sequences)))
        for (name, _), mine, (output, row) in zip(chosen, ours, plain, strict=True):
            theirs = output.sequences[row, -tokens:].tolist()
            same = first_difference(mine, theirs)
            if same is None:
                yield Comparison(name, len(mine), None)
                continue
            scores = output.scores[same][row]
            found = departure(same + 1, theirs[same], mine[same], scores, model.dtype)
            yield Comparison(name, same, found)


def departure(
    token: int, plain: int, speculative: int, scores: torch.Tensor, dtype: torch.dtype
) -> Divergence:
    """The divergence at new token ``token``, from plain ``generate``'s scores, float32 (vocab,)."""
    best, second = scores.topk(2).values.tolist()
    chosen = float(scores[speculative])
    return Divergence(
        token=token,
        plain=plain,
        speculative=speculative,
        gap=best - second,
        gap_ulps=ulps_apart(best, second, dtype),
        chosen_gap=best - chosen,
        chosen_ulps=ulps_apart(best, chosen, dtype),
    )


def histogram(found: Sequence[Divergence]) -> dict[str, int]:
    """How many divergences lie in each range of ``gap_ulps``: 0, to 1, to 2, ..., to 8, more."""
    most = int(MOST_ULPS)
    counts = dict.fromkeys([*(str(unit) for unit in range(most + 1)), f">{most}"], 0)
    for each in found:
        unit = math.ceil(min(each.gap_ulps, most + 1))
        counts[str(unit) if unit <= most else f">{most}"] += 1
    return counts


SETTINGS = ("dtype", "tokens", "batch", "plain", "drafter", "gamma")


def add_arguments(options: CommandOptions) -> None:
    options.count("--count", 100, "prompts")
    options.count("--tokens", 128, "new tokens of each")
    options.count("--batch", 1, "prompts in a batch")
    options.flag("--plain", "no speculation: the batches against each prompt alone")
    options.model()
    options.drafter()
    options.gamma()
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Compare every prompt; print each divergence and their distribution; 1: ours is no tie."""
    warnings.simplefilter("ignore")  # the library's sources have some
    check_least(arguments, count=1, tokens=1, batch=1)
    speculator = None
    if not arguments.plain:
        speculator = make_speculator(arguments.drafter, arguments.gamma)
    loaded = load_model(arguments)
    prompts = encoded(arguments, loaded)
    dtype = getattr(torch, arguments.dtype)
    diverged: list[Comparison] = []
    for each in compare(loaded.model, speculator, prompts, arguments.tokens, arguments.batch):
        if each.divergence is None:
            print(".", end="", flush=True, file=sys.stderr)
        else:
            diverged.append(each)
            print(line(each.name, each.divergence, dtype, loaded.tokenizer), flush=True)
    print(file=sys.stderr)
    found = [each.divergence for each in diverged if each.divergence is not None]
    ties = sum(each.is_tie(dtype) for each in found)
    report = {
        "settings": {
            **{"model": loaded.name, "prompts": len(prompts)},
            **{name: getattr(arguments, name) for name in SETTINGS},
        },
        **{"identical": len(prompts) - len(found), "ties": ties, "wrong": len(found) - ties},
        "tokens_per_call": speculator and speculator.stats.tokens_per_call,
        "histogram_ulps": histogram(found),
        "departures": [asdict(each) for each in diverged],
    }
    print(renderers.divergence(report))
    write(arguments, report)
    return int(ties < len(found) and not arguments.plain)


def encoded(arguments: argparse.Namespace, loaded: LoadedModel) -> list[tuple[str, Int32]]:
    """Names and token ids, int32 (n,), of the library's prompts; an error if one has no room."""
    named = [
        (f"{each.group} {each.id}", np.array(loaded.encode(each.text, chat=True), np.int32))
        for each in library_prompts(arguments.count)
    ]
    limit = loaded.max_positions
    if limit is not None and max(len(ids) for _, ids in named) + arguments.tokens > limit:
        raise UsageError(f"a prompt leaves no room for {arguments.tokens} tokens")
    return named


def line(name: str, at: Divergence, dtype: torch.dtype, tokenizer: Any) -> str:
    """Where a prompt's texts diverge, and the gap of the logits there."""
    plain, speculative = (tokenizer.decode([token]) for token in (at.plain, at.speculative))
    verdict = "tie" if at.is_tie(dtype) else "WRONG"
    return (
        f"{verdict:<6}{name}, token {at.token}: {speculative!r} instead of {plain!r};"
        f" two best {at.gap:.3g} apart ({at.gap_ulps:.3g} ulps), these two {at.chosen_gap:.3g}"
        f" ({at.chosen_ulps:.3g} ulps)"
    )
