"""Other projects' drafters with our interface, through their own packages.

The interface costs them what it costs ours: a call, an array and a Draft in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.metadata import distribution
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np

from ngramspec.cli.options import CommandOptions
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession

ARCTIC_DEPTH = 64
ARCTIC_KEPT = 100_000  # responses: all

# SGLang's defaults: ``speculative_ngram_*`` of srt/arg_groups/fields/spec.py; the number of tokens,
# which includes the committed one, of ``_handle_ngram`` in srt/arg_groups/speculative_hook.py
SGLANG_CAPACITY, SGLANG_DEPTH, SGLANG_BREADTHS, SGLANG_TOKENS = 10_000_000, 18, (1, 10), 12
SGLANG_SOURCES = ("result", "trie", "suffix_automaton", "ngram", "ngram_corpus_ffi")


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


@cache
def sglang_corpus() -> Any:
    """The class of SGLang's corpus, compiled from its sources without importing sglang."""
    import tvm_ffi.cpp

    folder = f"{distribution('sglang').locate_file('sglang/kernels/jit')}"
    module = tvm_ffi.cpp.load(
        "ngram_corpus",
        cpp_files=[f"{folder}/csrc/ngram_corpus/{name}.cpp" for name in SGLANG_SOURCES],
        extra_cflags=["-std=c++20", "-O3"],
        extra_include_paths=[f"{folder}/include"],
    )
    module.register_once()

    @tvm_ffi.register_object("sgl.NgramCorpus")
    class Corpus(tvm_ffi.Object): ...

    return Corpus


class SglangSession(DraftSession):
    """One request in SGLang's corpus, read and written as ``NGRAMWorker`` does.

    A step inserts the tail that it has drafted from, so its own tokens are inserted by the next
    step. Only the last 17 tokens of a prompt are inserted. The worker fills each draft up to 11
    nodes with token 0 after the committed tokens.
    """

    def __init__(self, corpus: Any, request: int, tokens: Int32) -> None:
        self.corpus, self.request = corpus, np.array([request])
        self.tail, self.length = tokens[-SGLANG_DEPTH:].copy(), len(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        found = np.zeros(SGLANG_TOKENS, np.int32)
        mask = np.zeros(SGLANG_TOKENS**2, np.uint8)  # row i: the ancestors of node i, and itself
        tail = self.tail, np.array([0, len(self.tail)])
        self.corpus.synchronize()
        self.corpus.batch_match_stateful(self.request, *tail, np.array([self.length]), found, mask)
        self.corpus.async_insert(*tail)
        ancestors = np.tril(mask.reshape(SGLANG_TOKENS, -1), -1)
        parents = (ancestors * np.arange(SGLANG_TOKENS)).argmax(1) - 1  # the last ancestor
        return Draft(found[1:], parents[1:].astype(np.int32)).first(gamma)

    def extend(self, tokens: Int32) -> None:
        self.tail = np.concatenate((self.tail, tokens))[-SGLANG_DEPTH:]
        self.length += len(tokens)

    def close(self) -> None:
        # the scheduler overlaps steps, so the worker has begun another one when a request ends
        self.corpus.async_insert(self.tail, np.array([0, len(self.tail)]))
        self.corpus.erase_match_state(self.request)


class SglangDrafter(Drafter):
    """SGLang's NGRAM trees, with an empty corpus for each request, or one for all if ``kept``.

    If it is not kept, only one session may be open at a time.
    """

    source_names = ("sglang",)

    def __init__(self, kept: bool = False) -> None:
        self.kept, self.requests = kept, count()

    @cached_property
    def corpus(self) -> Any:
        """The corpus, which takes 1.8 GB; matched by recency ("BFS"), without external ones."""
        lengths = SGLANG_CAPACITY, SGLANG_DEPTH, *SGLANG_BREADTHS, SGLANG_TOKENS
        return sglang_corpus()(*lengths, 0, 0, 0)

    def with_stores(self, stores: Sequence[Any]) -> SglangDrafter:
        """One like this that keeps the corpus, as the server does; it reads no other."""
        return SglangDrafter(kept=True)

    def start(self, tokens: Int32) -> DraftSession:
        if not self.kept:
            self.corpus.synchronize()
            self.corpus.reset()
        return SglangSession(self.corpus, next(self.requests), tokens)


# name -> how a drafter is made, and the gamma it is asked for
Contenders = dict[str, tuple[Callable[[], Drafter], int | str]]

ARCTIC, SGLANG, TRANSFORMERS = "arctic_inference", "sglang", "transformers"
PEERS: dict[str, Contenders] = {  # by the package that they come from
    TRANSFORMERS: {"prompt lookup (transformers)": (LookupDrafter, 10)},
    ARCTIC: {
        "arctic, factor 4": (lambda: ArcticDrafter(4.0), 64),
        "arctic, factor 16": (lambda: ArcticDrafter(16.0), 64),
        "arctic tree, factor 16": (lambda: ArcticDrafter(16.0, trees=True), 64),
    },
    SGLANG: {"sglang tree": (SglangDrafter, SGLANG_TOKENS - 1)},
}
INSTALL = {
    TRANSFORMERS: "pip install transformers",
    ARCTIC: "pip install --no-deps arctic-inference==0.3.0",
    SGLANG: "pip install --no-deps sglang==0.5.23 apache-tvm-ffi ninja, and a C++20 compiler",
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
