"""Other projects' drafters with our interface, through their own packages.

The interface costs them what it costs ours: a call, an array and a Draft in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np

from ngramspec.cli.options import CommandOptions
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession

ARCTIC_DEPTH = 64
ARCTIC_KEPT = 100_000  # responses: all


class LookupSession(DraftSession):
    """The committed tokens, as transformers' candidate generator takes them."""

    def __init__(self, tokens: Int32, num_output_tokens: int, ngram_size: int) -> None:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self.torch = torch
        self.make = PromptLookupCandidateGenerator
        self.sizes = {"num_output_tokens": num_output_tokens, "max_matching_ngram_size": ngram_size}
        self.ids = torch.from_numpy(tokens.astype(np.int64))[None]
        self.generator = self.make(max_length=2**31, **self.sizes)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        # max_length leaves room for the token that the target adds
        self.generator.max_length = self.ids.shape[1] + gamma + 1
        candidates = self.generator.get_candidates(self.ids)[0][0, self.ids.shape[1] :]
        if gamma < 1 or not len(candidates):
            return EMPTY_DRAFT
        return Draft(candidates.numpy().astype(np.int32)[:gamma])

    def extend(self, tokens: Int32) -> None:
        new = self.torch.from_numpy(tokens.astype(np.int64))[None]
        self.ids = self.torch.cat((self.ids, new), dim=1)


class LookupDrafter(Drafter):
    """transformers' prompt lookup: the leftmost match of at most ``ngram_size`` tokens."""

    def __init__(self, num_output_tokens: int = 10, ngram_size: int = 2) -> None:
        self.num_output_tokens, self.ngram_size = num_output_tokens, ngram_size
        self.source_names = ("lookup",)

    def start(self, tokens: Int32) -> DraftSession:
        return LookupSession(tokens, self.num_output_tokens, self.ngram_size)


class ArcticSession(DraftSession):
    """One request in Arctic's suffix cache."""

    def __init__(self, cache: Any, request: int, tokens: Int32, factor: float, trees: bool) -> None:
        self.cache, self.request, self.factor, self.trees = cache, request, factor, trees
        self.recent = tokens[-ARCTIC_DEPTH:].copy()
        cache.start_request(request, tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        found = self.cache.speculate(
            self.request,
            self.recent,
            max_spec_tokens=gamma,
            max_spec_factor=self.factor,
            use_tree_spec=self.trees,
        )
        if gamma < 1 or not found.token_ids:
            return EMPTY_DRAFT
        parents = np.array(found.parents, np.int32) if self.trees else None
        tokens = np.array(found.token_ids, np.int32)
        return Draft(tokens, parents)  # its probs are of whole paths, no confidence as ours is

    def extend(self, tokens: Int32) -> None:
        self.cache.add_active_response(self.request, tokens)
        self.recent = np.concatenate((self.recent, tokens))[-ARCTIC_DEPTH:]

    def close(self) -> None:
        self.cache.stop_request(self.request)


class ArcticDrafter(Drafter):
    """Arctic's suffix decoding with the tokens of the request itself, and ``kept`` responses."""

    def __init__(self, factor: float, trees: bool = False, kept: int = 0) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=ARCTIC_DEPTH, max_cached_requests=kept)
        self.factor, self.trees = factor, trees
        self.source_names = ("arctic",)
        self.requests = count()

    def with_stores(self, stores: Sequence[Any]) -> ArcticDrafter:
        """One like this that keeps the responses of earlier requests; it reads no corpus."""
        return ArcticDrafter(self.factor, self.trees, kept=ARCTIC_KEPT)

    def start(self, tokens: Int32) -> DraftSession:
        return ArcticSession(self.cache, next(self.requests), tokens, self.factor, self.trees)


# name -> how a drafter is made, and the gamma it is asked for
Contenders = dict[str, tuple[Callable[[], Drafter], int | str]]

ARCTIC, TRANSFORMERS = "arctic_inference", "transformers"
PEERS: dict[str, Contenders] = {  # by the package that they come from
    TRANSFORMERS: {"prompt lookup (transformers)": (LookupDrafter, 10)},
    ARCTIC: {
        "arctic, factor 4": (lambda: ArcticDrafter(4.0), 64),
        "arctic, factor 16": (lambda: ArcticDrafter(16.0), 64),
        "arctic tree, factor 16": (lambda: ArcticDrafter(16.0, trees=True), 64),
    },
}
INSTALL = {
    TRANSFORMERS: "pip install transformers",
    ARCTIC: "pip install --no-deps arctic-inference==0.3.0",
}


def installed() -> tuple[Contenders, dict[str, str]]:
    """The peers that can run here; and for the others by name, how to install them."""
    here: Contenders = {}
    missing: dict[str, str] = {}
    for package, peers in PEERS.items():
        if find_spec(package) is None:
            missing |= dict.fromkeys(peers, INSTALL[package])
        else:
            here |= peers
    return here, missing


def add_peers(options: CommandOptions) -> None:
    """Declare ``--peers``."""
    options.flag("--peers", "also the drafters of other projects, if installed")


def print_skipped(skipped: dict[str, str]) -> None:
    """Say which peers are not installed, and how to install them."""
    for name, install in skipped.items():
        print(f"skipped: {name} is not installed ({install})")
