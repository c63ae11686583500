"""Lossy greedy verification three ways, at equal divergence: lenience, typical, flexible.

    python benchmarks/flexible.py --rules lenience typical flexible --json flexible.json

"flexible" follows FLy (Li et al. 2025): a drafted token that is not the target's is accepted if the
target's entropy there is high (it sees several ways to go on) and the next W drafted tokens are the
target's own (it goes on from there as the draft does). It is not part of the package: the figures
say why. Chains of the default drafter, gamma fixed; all rules get the same prompts.

Low perplexity is no proof of a good text: one that only copies has it, too. So each rule's texts
are also compared with the exact ones, by the share of their tokens that match in order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ngramspec import Speculator, build_drafter
from ngramspec.bench.change import Change, Recorder, decode
from ngramspec.bench.machine import machine
from ngramspec.bench.models import load
from ngramspec.bench.prompts import library_prompts
from ngramspec.draft import Draft
from ngramspec.verification.sampler import SampledTokens, TokenSampler

setup: Any = import_module("ngramspec.decoding.setup")

LENIENCES = (0.5, 0.3, 0.1, 0.03)
EPSILONS = (0.9, 0.6, 0.3, 0.09)  # of typical acceptance; delta is its square root, as in Medusa
ENTROPIES = (0.5, 2.0)  # nats
WINDOWS = (2, 4, 6)


FIGURES = ("tokens_per_call", "not_the_target_s", "shortfall", "perplexity", "likeness")


@dataclass(frozen=True)
class FlexibleSampler(TokenSampler):
    """A greedy sampler that accepts by entropy and what follows.

    Attributes:
        entropy: least entropy of the target where another token is accepted, in nats.
        window: drafted tokens behind it that have to be the target's.
    """

    entropy: float = 0.0
    window: int = 6

    def sample_all(
        self,
        drafts: Sequence[Draft],
        logits: torch.Tensor,
        beside: torch.Tensor | None = None,
    ) -> SampledTokens | None:
        assert self.rule.argmax
        assert not self.processors
        assert len(drafts) == 1
        drafted = drafts[0].tokens.tolist()
        return SampledTokens([flexible_tokens(logits[0], drafted, self.entropy, self.window)])


def flexible_tokens(
    logits: torch.Tensor, drafted: Sequence[int], entropy: float, window: int
) -> list[int]:
    """The target's tokens along a chain, with drafted ones where those are accepted.

    Args:
        logits: (n + 1, vocab).
        drafted: n tokens.
        entropy, window: see FlexibleSampler.
    """
    tokens: list[int] = logits.argmax(-1).tolist()
    for at, token in enumerate(drafted):
        if token == tokens[at]:
            continue
        behind = range(at + 1, at + 1 + window)
        follows = behind.stop <= len(drafted) and all(drafted[i] == tokens[i] for i in behind)
        probs = torch.softmax(logits[at].float(), dim=-1)
        if not follows or float(torch.special.entr(probs).sum()) < entropy:
            break
        tokens[at] = token
    return tokens


def settings(rules: Sequence[str]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, arguments of Speculator, of FlexibleSampler) of what is measured."""
    yield "exact", {}, {}
    for lenience in LENIENCES if "lenience" in rules else ():
        yield f"lenience {lenience:g}", {"lenience": lenience}, {}
    for epsilon in EPSILONS if "typical" in rules else ():
        delta = epsilon**0.5
        chosen = {"verification": "typical", "epsilon": epsilon, "delta": delta}
        yield f"typical {epsilon:g}, {delta:.2f}", chosen, {}
    for window in WINDOWS if "flexible" in rules else ():
        for entropy in ENTROPIES:
            name = f"flexible, entropy {entropy:g}, window {window}"
            yield name, {}, {"entropy": entropy, "window": window}


def likeness(exact: Sequence[int], text: Sequence[int]) -> float:
    """Twice the tokens that two texts have in common, in order, over the tokens of both."""
    return SequenceMatcher(None, exact, text, autojunk=False).ratio()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each setting."""
    loaded = load(None, arguments.dtype)
    prompts = [loaded.encode(each.text, chat=True) for each in library_prompts(arguments.count)]
    rows: list[dict[str, Any]] = []
    exact: list[list[int]] = []
    for name, chosen, flexible in settings(arguments.rules):
        drafter = Recorder(build_drafter("auto"))
        speculator = Speculator(drafter, arguments.gamma, tree=None, **chosen)
        change, plain = Change(), setup.TokenSampler
        if flexible:

            def make(flexible: dict[str, Any] = flexible, **fields: Any) -> TokenSampler:
                return FlexibleSampler(**fields, **flexible)

            setup.TokenSampler = make
        try:
            new = {"max_new_tokens": arguments.tokens, "do_sample": False}
            texts = [decode(loaded.model, ids, speculator, change, **new) for ids in prompts]
        finally:
            setup.TokenSampler = plain
        stats, exact = speculator.stats, exact or texts
        pairs = zip(exact, texts, strict=True)
        rows.append(
            {
                "rule": name,
                "tokens": len(change.moved),
                "tokens_per_call": stats.tokens_per_call,
                "alpha": stats.alpha,
                "not_the_target_s": change.mean_moved,
                "shortfall": float(np.mean(change.shortfall)),
                "perplexity": change.perplexity,
                "texts_changed": float(np.mean([each or 0.0 for each in change.texts])),
                "likeness": float(np.mean([likeness(*pair) for pair in pairs])),
                "texts": [loaded.tokenizer.decode(text) for text in texts],
            }
        )
        shown = (f"{rows[-1][key]:.4f}" for key in FIGURES)
        print(f"{name:<36}", *shown, flush=True)
    return rows


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="lossy greedy verification at equal divergence")
    known = ["lenience", "typical", "flexible"]
    parser.add_argument("--rules", nargs="+", default=known, choices=known)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--count", type=int, default=8, help="prompts")
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each")
    parser.add_argument("--gamma", type=int, default=16)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments)
    if arguments.json:
        given = {name: value for name, value in vars(arguments).items() if name != "json"}
        found = {"settings": given, "where": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
