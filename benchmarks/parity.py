"""Which models, processors, caches and batches give the baseline's text.

Every cell runs a tiny random model of a real class, greedily in float32, with the baseline and with
drafts that are half right, and compares the ids.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from benchmarks import renderers, tiny
from benchmarks.harness import padded, write
from ngramspec import Draft, Drafter, DraftSession, Speculator, UnsupportedError, generate
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Float32, Int32

NEW_TOKENS, GAMMA, TREE, RIGHT = 24, 5, 9, 0.6
GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": NEW_TOKENS}
LEAST_VARIETY = 4  # different tokens of a text: fewer would match by chance
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 11, 12, 5, 6], [3, 4, 3, 4, 3, 4, 9, 3]]
AMPLIFIES = "HrmTextForCausalLM"  # its loops amplify rounding: it runs in float64
# Classes that cannot generate from text alone, with the reason.
NOT_ALONE = {
    "Gemma3nForConditionalGeneration": "its vision tower needs the package timm",
    "Gemma4AssistantForCausalLM": "an assistant: it reads another model's states and cache",
    "Gemma4UnifiedAssistantForCausalLM": "an assistant: it reads another model's states and cache",
    "VoxtralRealtimeForConditionalGeneration": "it takes a piece of sound with every token",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing tried."""

    model: str
    what: str
    outcome: str
    detail: str = ""


class HalfRight(Drafter):
    """Knows the text of each row, and drafts each of its tokens with probability ``RIGHT``.

    In a tree a wrong sibling comes before every token.
    """

    source_names = ("half right",)

    def __init__(self, texts: list[list[int]], seed: int = 0) -> None:
        self.texts = texts
        self.rng = np.random.default_rng(seed)
        self.starts = 0

    def start(self, tokens: Int32) -> DraftSession:
        owner, row = self, self.starts % len(self.texts)
        self.starts += 1

        class Session(DraftSession):
            at = 1  # of the generated tokens: the prefill's is among ``tokens``

            def propose(
                self, gamma: int, cost: Float32 | None = None, *, tree: bool = False
            ) -> Draft:
                most = gamma // 2 if tree else gamma
                guess = np.array(owner.texts[row][self.at : self.at + most], np.int32)
                wrong = owner.rng.random(len(guess)) >= RIGHT
                chain = np.where(wrong, (guess + 1) % tiny.VOCAB, guess).astype(np.int32)
                if not tree:
                    return Draft(chain)
                siblings = ((chain + 2) % tiny.VOCAB).astype(np.int32)
                parents = np.repeat(np.arange(-1, 2 * len(chain) - 1, 2, dtype=np.int32), 2)
                return Draft(np.stack((siblings, chain), axis=1).ravel(), parents)

            def extend(self, tokens: Int32) -> None:
                self.at += len(tokens)

        return Session()


def classes() -> list[Any]:
    """Every causal and sequence-to-sequence class of the installed transformers."""
    from transformers.models.auto import modeling_auto

    found: list[Any] = []
    for mapping in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    ):
        for config in sorted(mapping.keys(), key=lambda each: str(each.__name__)):
            kinds = mapping[config]
            found += kinds if isinstance(kinds, tuple) else (kinds,)
    return [*dict.fromkeys(found)]


def walk() -> Iterator[Cell]:
    """Every class, in batches of 1 and 2."""
    for kind in classes():
        yield from try_class(kind)


FAMILIES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "MistralForCausalLM",
    "Gemma2ForCausalLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
)
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeated 3-grams": {"no_repeat_ngram_size": 3},
    "bad words": {"bad_words_ids": [[7], [8, 9]]},
    "encoder penalty": {"encoder_repetition_penalty": 1.3},
    "beams": {"num_beams": 2},
}
ROWS = (1, 2, 8)


def matrix(every: int = 1, device: torch.device | str = "cpu") -> Iterator[Cell]:
    """A few families with every cache, processor and batch size, or a part of them."""
    import transformers

    for at, name in enumerate(FAMILIES):
        model = build(getattr(transformers, name)).to(device)
        combinations = list(product(CACHES, PROCESSORS, ROWS))
        for cache, processor, rows in combinations[at % every :: every]:
            what = f"{cache} cache, {processor}, batch {rows}"
            yield compare(name, what, model, rows, **CACHES[cache], **PROCESSORS[processor])


def try_class(kind: Any) -> Iterator[Cell]:
    """The cells of one class: each batch size."""
    from transformers import GenerationMixin

    name = kind.__name__
    if getattr(kind, "generate", None) is not GenerationMixin.generate:
        yield Cell(name, "any", "refused", "it overrides generate, or has none")
        return
    if name in NOT_ALONE:
        yield Cell(name, "any", "not run", NOT_ALONE[name])
        return
    try:
        model = build(kind)
    except Exception as error:
        yield Cell(name, "any", "not run", _line(error))
        return
    model = model.double() if name == AMPLIFIES else model
    for rows in (1, 2):
        yield compare(name, f"batch {rows}", model, rows)


def build(kind: Any) -> Any:
    """A tiny model of a class, the first of some whose text varies; the last where none does."""
    for spread in (1.0, 0.25):
        for seed in range(3, 7):
            model = tiny.build(kind, seed, spread)
            plain = model.generate(**prompts(2), **GREEDY)
            if variety(plain) >= LEAST_VARIETY:
                return model
    return model


def variety(sequences: torch.Tensor) -> int:
    """How many different tokens the new text of every row has at least."""
    return min(len(set(row)) for row in sequences[:, -NEW_TOKENS:].tolist())


def compare(name: str, what: str, model: Any, rows: int, **kwargs: Any) -> Cell:
    """One cell: plain ``generate`` against drafts that are half right.

    Also with trees, and a single row with drafts in its prefill, which gamma="auto" has.
    """
    inputs = {name: each.to(model.device) for name, each in prompts(rows).items()}
    kwargs = GREEDY | kwargs
    try:
        plain = model.generate(**inputs, **kwargs)
    except Exception as error:
        return Cell(name, what, "not run", _line(error))
    new = plain[:, -NEW_TOKENS:].tolist()
    ways: list[tuple[Any, int | None]] = [(GAMMA, None), (TREE, TREE)]
    if rows == 1:
        ways.insert(1, ("auto", None))
    for gamma, tree in ways:
        try:
            speculator = Speculator(HalfRight(new), gamma, tree=tree)
            ours = generate(model, **inputs, speculator=speculator, **kwargs)
        except UnsupportedError as error:
            return Cell(name, what, "refused", _line(error))
        except Exception as error:
            return Cell(name, what, "wrong", f"{type(error).__name__}: {_line(error)}")
        if not torch.equal(plain, ours):
            return Cell(name, what, "wrong", _difference(plain, ours))
        chains = next((each for each in speculator.stats.limits if "are chains" in each), "")
    if variety(plain) < LEAST_VARIETY:
        return Cell(name, what, "not run", f"fewer than {LEAST_VARIETY} different tokens")
    return Cell(name, what, "identical", chains.replace("drafts are chains", "as chains"))


def prompts(rows: int) -> dict[str, torch.Tensor]:
    """One prompt, or several padded on the left, with their mask."""
    return padded([PROMPTS[row % len(PROMPTS)] for row in range(rows)])


def _difference(plain: torch.Tensor, ours: torch.Tensor) -> str:
    if plain.shape != ours.shape:
        return f"shape {tuple(ours.shape)} instead of {tuple(plain.shape)}"
    row, at = (plain != ours).nonzero()[0].tolist()
    new = at - (plain.shape[1] - NEW_TOKENS) + 1
    return f"row {row}: new token {new} is {int(ours[row, at])} instead of {int(plain[row, at])}"


def _line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:120]


def add_arguments(options: CommandOptions) -> None:
    options.flag("--families-only", "a few families, with caches and processors")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Try every cell; print those that are not identical, and a summary; 1 if a cell is wrong."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    cells = []
    for cell in chain(matrix(), () if arguments.families_only else walk()):
        if cell.outcome != "identical":
            print(f"{cell.outcome:<10} {cell.model}, {cell.what}: {cell.detail}", flush=True)
        cells.append(cell)
    report = {"cells": [asdict(cell) for cell in cells]}
    print(renderers.parity(report))
    write(arguments, report)
    return int(any(cell.outcome == "wrong" for cell in cells))
