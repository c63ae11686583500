"""Drafting by value: copies, resumed copies and n-gram counts under one calibrated estimate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ngramspec._native import (
    BEGINNINGS,
    MOST_TOKENS,
    Calibration,
    StorePair,
    StoreSource,
    ValueEngine,
)
from ngramspec.draft import Draft, EvidenceRequest, Float32, Int32, Nodes, Observed
from ngramspec.drafters.base import DraftSession, LearningDrafter
from ngramspec.errors import check_bool, check_int
from ngramspec.stores import Store, open_stores

if TYPE_CHECKING:
    from ngramspec.drafters.tool_calls import ToolCalls

SOURCES = ("copy", "ngram", "unigram")
RECYCLE = "recycle"  # Token Recycling: the target's own top-k candidates
SOURCES_OF_ENGINE = ("copy", "resume", "ngram", "unigram", "store", RECYCLE)  # see Draft.source
STORE = SOURCES_OF_ENGINE.index("store")
TOOLS = "tools"  # predicted tool calls
RECYCLE_TOP_K = 8  # candidates kept per position
# With always=False, Token Recycling is used in trees if a forward of FLAT_COST_NODES drafted nodes
# costs at most MAX_FLAT_COST times a one-position forward. Not tuned.
MAX_FLAT_COST, FLAT_COST_NODES = 1.15, 32
# Earlier prompts that make a beginning a kind; the kinds, of 120 kB each, and beginnings kept.
RECURRENCES, MAX_KINDS, MAX_BEGINNINGS = 3, 32, 2048


class Calibrations:
    """How often a drafter's candidates were right, for each kind of prompts. Thread-safe.

    A beginning of 8 to 64 tokens that RECURRENCES earlier prompts had is a kind; a prompt's is its
    longest one. Its calibration starts as a copy of the common one, which all other prompts have.
    """

    def __init__(self, common: Calibration) -> None:
        self.common = common
        self._kind = lru_cache(MAX_KINDS)(lambda beginning: common.copy())
        self._prompts = lru_cache(MAX_BEGINNINGS)(lambda beginning: count())

    def of(self, prompt: Int32) -> Calibration:
        """The calibration of a new sequence with a prompt, int32 (n,)."""
        kind = None
        for length in BEGINNINGS:
            beginning = hash(prompt[:length].tobytes())
            if length <= len(prompt) and next(self._prompts(beginning)) >= RECURRENCES:
                kind = beginning
        return self.common if kind is None else self._kind(kind)


class SessionStores:
    """The stores, at least one, of one sequence that begins with ``prompt``, int32 (n,)."""

    def __init__(self, stores: Sequence[Any], prompt: Int32) -> None:
        read = [each.request() for each in stores]
        pairs = zip(read, stores, strict=True)
        self._own = [request for request, each in pairs if request is not each]
        for request in self._own:
            request.begin(prompt)
        known = (each.familiar for each in read if each.familiar is not None)
        self.familiar = next(known, None)  # of the first shared store that has any
        self.rehearsed = max(each.rehearsed for each in read)  # last prompt tokens to learn from
        self.source: StoreSource = read[-1].index
        for each in reversed(read[:-1]):
            self.source = StorePair(each.index, self.source)

    def append(self, tokens: Int32) -> None:
        """Add committed tokens, int32 (n,), to the namespaces."""
        for request in self._own:
            request.append(tokens)

    def finish(self) -> None:
        """End the sequence normally."""
        for request in self._own:
            request.finish()


class ValueSession(DraftSession):
    """Drafts for one sequence with a value engine.

    It learns in ``extend``: the committed tokens show for every candidate whether it was right,
    including candidates after the draft's end and those that were not drafted. ``observe`` only
    receives the target's top-k candidates, if they are asked for, and credits stores.
    """

    engine_type: Any = ValueEngine  # or its twin

    def __init__(self, drafter: ValueDrafter, tokens: Int32) -> None:
        self._stores = stores = SessionStores(drafter.stores, tokens) if drafter.stores else None
        self.engine = self.engine_type(
            drafter.calibrations.of(tokens),
            *(name in drafter.sources for name in SOURCES),
            drafter.min_match,
            None if stores is None else stores.source,
            RECYCLE in drafter.sources,
            drafter.headed,
            None if stores is None else stores.familiar,
        )
        self.tools = None if drafter.tools is None else drafter.tools.predictor(tokens)
        self._always = self._wanted = drafter.always
        rehearsed = 0 if stores is None else stores.rehearsed
        known = max(len(tokens) - rehearsed, 0)
        self.engine.extend(tokens[:known])
        if rehearsed:
            self.engine.rehearse(tokens[known:])

    @property
    def wants_evidence(self) -> bool:
        return self._wanted

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if not self._always:
            self._wanted = tree and cost is not None and is_flat(cost)
        if self.tools is not None:
            path, log_probs = self.tools.predict(gamma)
            if len(path):
                before = np.append(np.int32(0), path[:-1])
                self.engine.set_head_rows(before, path[:, None], log_probs[:, None])
        if tree:
            tokens, parents, confidence, source = self.engine.draft_tree(gamma, cost)
            return Draft(tokens, parents, confidence, None, source)
        tokens, confidence, source = self.engine.draft(gamma, cost)
        return Draft(tokens, None, confidence, None, source)

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        if self._stores is not None and draft.source is not None and len(accepted):
            source = draft.source.tobytes()  # int8, faster to index than an array
            taken = [source[i] for i in accepted].count(STORE)
            if taken:
                self.engine.credit_store(taken)
        if evidence is not None and len(evidence.tokens):
            seen = evidence
            self.engine.recycle(seen.tokens, seen.ids, seen.log_probs, seen.accepted)

    def extend(self, tokens: Int32) -> None:
        self.engine.extend(tokens)
        if self.tools is not None:
            self.tools.extend(tokens)
        if self._stores is not None:
            self._stores.append(tokens)

    def sizeof(self) -> int | None:
        return int(self.engine.sizeof())

    def close(self) -> None:
        if self._stores is not None:
            self._stores.finish()


def is_flat(cost: Float32) -> bool:
    """Whether FLAT_COST_NODES drafted nodes cost at most MAX_FLAT_COST one-position forwards."""
    return len(cost) > FLAT_COST_NODES + 1 and bool(
        cost[FLAT_COST_NODES + 1] <= MAX_FLAT_COST * cost[1]
    )


class ValueDrafter(LearningDrafter):
    """Drafts the most probable candidate at every position while expected tokens per cost rise.

    Its sequences share what they learn (see Calibrations): counts and weights, never text. However,
    the counts show how repetitive earlier texts were, and drafts and timings depend on them. Where
    tenants must not learn this about each other, let each request learn separately with
    ``Speculator(calibration="request")``, or give each tenant a separate Speculator.

    Args:
        sources: where candidates come from: some of "copy", "ngram", "unigram" and "recycle" (the
            target's own candidates after earlier occurrences of a token), each once, in any order.
        min_match: shortest match to copy from, in tokens, 1..2**30 (no text is longer).
        stores: what to draft from in addition to each sequence's own text: corpora, paths of
            corpora, and namespaces of shared stores.
        always: whether "recycle" is used in every draft; False: only in trees where a forward of
            32 nodes costs at most 1.15 times a one-position forward.
    """

    estimates = True
    branches = True
    learned: tuple[str, ...] = ("calibrations",)
    always = True
    headed = False  # whether its engines draft a head's tokens, or predicted tool calls, too
    tools: ToolCalls | None = None

    def __init__(
        self,
        sources: Sequence[str] = SOURCES,
        min_match: int = 2,
        stores: Sequence[Store] = (),
        always: bool = True,
    ) -> None:
        unknown = [name for name in sources if name not in (*SOURCES, RECYCLE)]
        if unknown or not sources or len(set(sources)) < len(sources):
            known = ", ".join((*SOURCES, RECYCLE))
            raise ValueError(f"sources must be some of {known}, each once, got {tuple(sources)}")
        self.always = check_bool("always", always)
        self._begin(sources, check_int("min_match", min_match, 1, MOST_TOKENS), stores)
        named = {"copy": f"copy(min_match={min_match})"}
        if not always:
            named[RECYCLE] = f"{RECYCLE}(always=false)"
        self.spec = "+".join(named.get(name, name) for name in self.sources)

    def _begin(self, sources: Sequence[str], min_match: int, stores: Sequence[Store]) -> None:
        self.sources, self.min_match = tuple(sources), min_match
        self.stores = open_stores(stores)
        if RECYCLE in self.sources:
            self.evidence = EvidenceRequest(top_k=RECYCLE_TOP_K)
        self.forget()

    @property
    def source_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The engine's sources as far as they are used, and "tools"."""
        if self.tools is not None:
            return (*SOURCES_OF_ENGINE, TOOLS)
        if RECYCLE in self.sources:
            return SOURCES_OF_ENGINE
        return SOURCES_OF_ENGINE[: STORE + bool(self.stores)]

    def with_stores(self, stores: Sequence[Store]) -> Self:
        """A copy of this drafter with other stores; both share what they learn."""
        return self.with_attributes(stores=open_stores(stores))

    def with_tools(self, tools: ToolCalls) -> Self:
        """A copy of this drafter that predicts tool calls; both share what they learn."""
        return self.with_attributes(tools=tools, headed=True)

    def forget(self) -> None:
        self.calibrations = Calibrations(Calibration())

    def start(self, tokens: Int32) -> ValueSession:
        return ValueSession(self.of_sequence(), tokens)


class StoreDrafter(ValueDrafter):
    """Drafts from stores only, not from the sequence's own text: REST (He et al. 2023).

    Without stores it drafts nothing. The same holds in engines that provide none.

    Args:
        stores: corpora, paths of corpora, and namespaces of shared stores.
    """

    spec = "store"

    def __init__(self, stores: Sequence[Store] = ()) -> None:
        self._begin((), 2, stores)
