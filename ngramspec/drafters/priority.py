"""Several drafters as one, in order of priority, and confidence from measured acceptance.

Drafts of several drafters are merged by their prefixes into one tree (SpecInfer, Miao et al. 2023).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ngramspec.costs.policies import reach_of, worthwhile_nodes
from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Float32, Int8, Int32, Nodes, Observed
from ngramspec.drafters.base import (
    Drafter,
    DraftModel,
    DraftSession,
    ForwardingSession,
    LearningDrafter,
    check_draft,
    check_evidence,
    check_source_names,
    valid_prefix,
    verified_count,
)
from ngramspec.drafters.stochastic import distributions, proposal_of

# Of nodes in merged trees; not tuned: their confidence, and the factor on that of a draft's first
# nodes for each draft of higher priority.
ASSUMED_CONFIDENCE, PRIORITY_FACTOR = 0.9, 0.3


def pack(drafts: Sequence[Draft], limit: int) -> Draft:
    """Merge drafts, in order of priority, into one prefix tree, which is a deterministic draft.

    Confidences and proposals are dropped. Accepting a node if the target samples the same token is
    exact for sampled tokens as well. A node that several drafts share has the source of the first.

    The result has the ``limit`` nodes that are most likely reached, in descending order, if a later
    draft and a deeper node count as less likely. On ties, nodes of the earlier draft come first.
    """
    places: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    confidence: list[float] = []
    source: list[int] = []
    for which, draft in enumerate(drafts):
        n = len(draft)
        parents = range(-1, n - 1) if draft.parents is None else draft.parents.tolist()
        sources = [0] * n if draft.source is None else draft.source.tolist()
        mine: list[int] = []
        for token, above, origin in zip(draft.tokens.tolist(), parents, sources, strict=True):
            key = (mine[above] if above >= 0 else -1, token)
            node = places.setdefault(key, len(places))
            if node == len(source):
                source.append(origin)
                factor = PRIORITY_FACTOR**which if above < 0 else 1.0
                confidence.append(ASSUMED_CONFIDENCE * factor)
            mine.append(node)
    if not places or limit < 1:
        return EMPTY_DRAFT
    parents, tokens = np.array(list(places), np.int32).T.copy()
    whole = Draft(tokens, parents, None, None, np.array(source, np.int8))
    return order(whole, reach_of(parents, np.array(confidence, np.float32))).first(limit)


def order(tree: Draft, reach: NDArray[np.float64]) -> Draft:
    """Sort a tree's nodes stably by ``reach``, float64 (n,), which descends along each path."""
    by_reach = np.argsort(-reach, kind="stable")
    new = np.empty(len(by_reach) + 1, np.int32)
    new[by_reach] = np.arange(len(by_reach), dtype=np.int32)
    new[-1] = -1  # the parent of nodes that follow the last committed token
    assert tree.parents is not None
    confidence = None if tree.confidence is None else tree.confidence[by_reach]
    source = None if tree.source is None else tree.source[by_reach]
    return Draft(tree.tokens[by_reach], new[tree.parents[by_reach]], confidence, None, source)


ANY_VOCAB = 1 << 31  # as vocabulary size: only the joined draft is checked against the real one


class PrioritySession(DraftSession):
    """One session per drafter, in order of priority.

    When a drafter fails after another one's tokens, only its own part is lost, and the step's
    ``extend`` raises its error. If the whole draft were lost, tokens sampled by an earlier drafter
    would decide whether they are verified, which would bias the output.
    """

    def __init__(self, drafter: PriorityDrafter, sessions: list[DraftSession]) -> None:
        self.drafter, self.sessions = drafter, sessions
        self.parts: list[tuple[int, Draft]] = []  # (session, its part) of the last draft
        self.trees = False  # whether each drafter proposed a separate tree
        self.failed: Exception | None = None  # a drafter's error in this step

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Draft in order of priority; a tree merges that chain with each drafter's own tree."""
        chain = self.propose_after(NO_TOKENS, gamma)
        self.trees = tree
        if not tree:
            return chain
        trees = enumerate(session.propose(gamma, tree=True) for session in self.sessions)
        self.parts = [(which, part) for which, part in trees if len(part)]
        own = [
            Draft(part.tokens, part.parents, None, None, self._source(which, part))
            for which, part in self.parts
        ]
        return pack([chain, *own], gamma)

    @property
    def wants_evidence(self) -> bool:
        return any(self.sessions[which].wants_evidence for which in self.drafter.askers)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        self.parts, self.failed, self.trees = [], None, False
        so_far, room = drafted, gamma
        for which in range(len(self.sessions)):
            if room <= 0 or self.failed is not None:
                break
            part = self._part(which, so_far, room)
            if len(part):
                self.parts.append((which, part))
                so_far = np.concatenate((so_far, part.tokens)) if len(so_far) else part.tokens
                room -= len(part)
        if self.failed is not None and not self.parts:
            raise self.failed
        if not self.parts:
            return EMPTY_DRAFT
        source = np.concatenate([self._source(*each) for each in self.parts])
        draft = Draft(so_far[len(drafted) :], source=source)
        if all(part.proposal is None for _, part in self.parts):
            return draft
        sampled_from = [each for _, part in self.parts for each in distributions(part)]
        return replace(draft, proposal=proposal_of(sampled_from))

    def _part(self, which: int, so_far: Int32, room: int) -> Draft:
        """A drafter's draft after ``so_far``, int32 (n,), up to its first invalid node."""
        part, sources = EMPTY_DRAFT, self.drafter.counts[which]
        try:
            part = self.sessions[which].propose_after(so_far, room)
            return check_draft(part, room, ANY_VOCAB, sources=sources)
        except Exception as error:
            self.failed = error
        return valid_prefix(part, room, ANY_VOCAB, tree=False, sources=sources)

    def _source(self, which: int, part: Draft) -> Int8:
        inner = np.zeros(len(part), np.int8) if part.source is None else part.source
        return inner + np.int8(sum(self.drafter.counts[:which]))

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        if self.trees:
            tokens = draft.tokens[list(accepted)].tolist()
            for which, part in self.parts:  # each has its own tree
                self.sessions[which].observe(part, part.path_along(tokens))
        else:
            self._observe_chain(len(accepted), verified_count(draft, accepted, verified))
        self.parts = []
        if evidence is not None:
            for which in self.drafter.askers:
                self.sessions[which].observe(EMPTY_DRAFT, (), 0, evidence)

    def _observe_chain(self, accepted: int, judged: int) -> None:
        """Tell each drafter how much of its part was verified and accepted."""
        begin = 0
        for which, part in self.parts:
            mine = min(max(judged - begin, 0), len(part))
            if mine:
                taken = min(max(accepted - begin, 0), len(part))
                self.sessions[which].observe(part, range(taken), mine)
            begin += len(part)

    def extend(self, tokens: Int32) -> None:
        if self.failed is not None:
            raise self.failed
        for session in self.sessions:
            session.extend(tokens)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        for which, session in enumerate(self.sessions):
            session.begin_sampling(temperature, (*seed, which))

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        for session in self.sessions:
            session.begin_models(load)

    def sizeof(self) -> int | None:
        sizes = [session.sizeof() for session in self.sessions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def close(self) -> None:
        with ExitStack() as all_of_them:  # closes all, even if one raises
            for session in reversed(self.sessions):
                all_of_them.callback(session.close)


class PriorityDrafter(Drafter):
    """Drafters in order of priority: each continues the draft of those before it.

    Args:
        drafters: highest priority first, at least one.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("drafters must hold at least one drafter, got none")
        self.drafters = tuple(drafters)
        names = [check_source_names(drafter.source_names) for drafter in drafters]
        self.counts = [len(each) for each in names]  # of each drafter's sources
        self.source_names = check_source_names(tuple(name for each in names for name in each))
        requests = [check_evidence(drafter.evidence) for drafter in drafters]
        # Drafters that ask for evidence: each gets that of the whole draft in a separate call.
        self.askers = [which for which, request in enumerate(requests) if request is not None]
        for request in requests:
            self.evidence = self.evidence if request is None else request | self.evidence
        self.assistants = tuple(each for drafter in drafters for each in drafter.assistants)
        if any(drafter.stores for drafter in drafters):
            raise ValueError("drafters must have no stores; only the outermost one can have them")
        specs = [drafter.spec for drafter in drafters]
        self.spec = None if None in specs else "+".join(str(spec) for spec in specs)

    def with_calibration(self, *, by_request: bool) -> Drafter:
        drafters = [drafter.with_calibration(by_request=by_request) for drafter in self.drafters]
        if all(new is old for new, old in zip(drafters, self.drafters, strict=True)):
            return self
        return PriorityDrafter(drafters)

    def start(self, tokens: Int32) -> DraftSession:
        sessions: list[DraftSession] = []
        with ExitStack() as begun:  # closes those already started if a later one raises
            for drafter in self.drafters:
                sessions.append(drafter.start(tokens))
                begun.callback(sessions[-1].close)
            begun.pop_all()
        return PrioritySession(self, sessions)


DEPTH_CELLS = 16  # depths with separate counts; deeper nodes share the last
SIBLING_CELLS = 4  # places among siblings with separate counts
HALVE_AT_VERIFIED = 600  # at which counts are halved, so that old ones fade: the value engine's
PRIOR_ACCEPTED, PRIOR_VERIFIED = 2.0, 4.0  # counts to begin with: one half, soon outweighed


class CalibratedSession(ForwardingSession):
    """A session whose drafts get confidence and end where expected tokens per cost are highest.

    It learns in ``extend`` from the committed tokens, so that draft tokens after the verified ones
    count as well. ``observe`` goes to the inner session.
    """

    def __init__(self, drafter: CalibratedDrafter, session: DraftSession) -> None:
        super().__init__(session)
        self.drafter = drafter
        self.last: Draft | None = None

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if cost is not None and self.drafter.samples and not tree:
            return self.propose_sampled(self.drafter.sampled_length(gamma, cost), gamma)
        draft = self.inner.propose(gamma, tree=tree)
        self.drafter.samples |= draft.proposal is not None
        self.last = draft if len(draft) else None
        if self.last is None:
            return draft
        confidence = self.drafter.confidence(draft)
        whole = replace(draft, confidence=confidence)
        reached = reach_of(draft.parents, confidence)
        if draft.parents is not None and draft.proposal is None:
            whole, reached = order(whole, reached), -np.sort(-reached)
        if cost is None or draft.proposal is not None:
            return whole
        return whole.first(worthwhile_nodes(reached, cost))

    def propose_sampled(self, length: int, gamma: int) -> Draft:
        """Sample a draft of a length decided beforehand: sampled tokens would bias the output."""
        draft = self.inner.propose(min(length + 1, gamma))  # the extra token is only learned from
        if not len(draft):
            return draft
        self.last = draft
        return replace(draft, confidence=self.drafter.confidence(draft)).first(length)

    def extend(self, tokens: Int32) -> None:
        if self.last is not None:
            self.drafter.learn(self.last, tokens)
            self.last = None
        super().extend(tokens)


class CalibratedDrafter(LearningDrafter):
    """Another drafter's drafts, with the acceptance rate of each node's source, depth and place.

    The place is the index among its siblings: 0 in a chain. Confidence is (accepted + 2) /
    (verified + 4) of its counts (float32, 8 bytes for each source, depth and place). The counts are
    halved when full and shared by the drafter's sequences. Thread-safe: one lock guards them.
    """

    estimates = True
    learned = ("samples", "_lock", "_accepted", "_verified")

    def __init__(self, inner: Drafter) -> None:
        if inner.stores:
            raise ValueError(f"inner must have no stores, got {inner.stores}")
        self.inner = inner
        self.source_names = check_source_names(inner.source_names)
        self.spec = inner.spec
        self.evidence, self.assistants = inner.evidence, inner.assistants
        self.forget()

    def with_calibration(self, *, by_request: bool) -> Self:
        other = super().with_calibration(by_request=by_request)
        other.inner = self.inner.with_calibration(by_request=by_request)
        return other

    def forget(self) -> None:
        self.samples = False  # whether a draft with a proposal was seen
        self._lock = threading.Lock()
        shape = (len(self.source_names), DEPTH_CELLS, SIBLING_CELLS)
        self._accepted = np.empty(shape, np.float32)
        self._accepted[:] = PRIOR_ACCEPTED / (1 + np.arange(SIBLING_CELLS))
        self._verified = np.full(shape, PRIOR_VERIFIED, np.float32)

    def start(self, tokens: Int32) -> DraftSession:
        return CalibratedSession(self.of_sequence(), self.inner.start(tokens))

    def confidence(self, draft: Draft) -> Float32:
        """P(accepted | parent accepted) of each node of a draft, float32 (n,)."""
        cells = self._cells(draft)
        with self._lock:
            confidence: Float32 = self._accepted[cells] / self._verified[cells]
        return confidence

    def sampled_length(self, gamma: int, cost: Float32) -> int:
        """Number of tokens to sample, at most gamma, from the acceptance rate at each depth."""
        with self._lock:
            confidence = self._accepted[:, :, 0].sum(axis=0) / self._verified[:, :, 0].sum(axis=0)
        depths = np.minimum(np.arange(gamma), DEPTH_CELLS - 1)
        return worthwhile_nodes(np.cumprod(confidence[depths]), cost)

    def learn(self, draft: Draft, committed: Int32) -> None:
        """Count the nodes whose parents were committed, because the token after them is known."""
        path, children = draft.path_along(committed.tolist()), draft.children()
        parents = [-1, *path][: len(committed)]
        verified = [node for parent in parents for node in children[parent + 1]]
        cells = tuple(each[verified] for each in self._cells(draft))
        with self._lock:
            np.add.at(self._accepted, cells, np.isin(verified, path))
            np.add.at(self._verified, cells, 1)
            faded = self._verified > HALVE_AT_VERIFIED
            self._accepted[faded] /= 2
            self._verified[faded] /= 2

    def _cells(self, draft: Draft) -> tuple[Int32, Int32, Int32]:
        """Source, depth and place among siblings of each node, int32 (n,) each."""
        n = len(draft)
        source = np.zeros(n, np.int32) if draft.source is None else draft.source.astype(np.int32)
        depth, place = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
        if draft.parents is not None:
            for parent, below in enumerate(draft.children(), -1):
                depth[below] = depth[parent] + 1 if parent >= 0 else 0
                place[below] = np.arange(len(below))
        return source, np.minimum(depth, DEPTH_CELLS - 1), np.minimum(place, SIBLING_CELLS - 1)
