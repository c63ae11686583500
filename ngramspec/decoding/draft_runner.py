"""One row's drafting: its session, its draft length, and replacing the drafter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Evidence, EvidenceRequest, Int32, Verdict
from ngramspec.draft_length.optimal import likeliest_path
from ngramspec.draft_length.schedule import GammaController
from ngramspec.drafters.base import Drafter, DraftModel
from ngramspec.drafters.call import RowStores
from ngramspec.drafters.guarded import MAX_FAULTS, GuardedSession
from ngramspec.stats import DecodeStats
from ngramspec.verification.evidence import Computed

if TYPE_CHECKING:
    from ngramspec.decoding.reference import ReferenceCounter

logger = logging.getLogger("ngramspec")


class DraftRunner:
    """Gets a row's drafts from the current drafter.

    An error in a drafter only loses drafts (see ``GuardedSession``). The first fault of a
    generation is logged, and every fault is counted in the statistics.

    Ids without a logit of the target are hidden from drafters. Examples are placeholders of images
    and ids of a reference text with another vocabulary. The target never emits them. If a
    stochastic drafter sampled one, its draft would be rejected because of a sampled token, which
    biases the output.

    Args:
        current: returns the drafter to use; called at every step.
        tokens: the committed tokens, int32 (n,), which begin with ``reference``, int32 (m,).
        tree, always: whether drafts may be trees, and whether also when no costs are known.
        temperature: None: greedy decoding.
        seed: of the call and the row, for stochastic drafts.
        load: opens the draft models of sessions that need one.
        shared: adds the row's text to the call's shared stores.
    """

    def __init__(
        self,
        current: Callable[[], Drafter],
        controller: GammaController,
        tokens: Int32,
        vocab: int,
        stats: DecodeStats,
        *,
        tree: bool = False,
        always: bool = False,
        temperature: float | None = None,
        seed: tuple[int, ...] = (),
        load: Callable[[Any], DraftModel] | None = None,
        shared: RowStores | None = None,
        reference: Int32 = NO_TOKENS,
    ) -> None:
        self._current, self._controller, self._stats = current, controller, stats
        self._tree, self.always_branches = tree, always
        self._temperature, self._seed, self._load, self._shared = temperature, seed, load, shared
        self._reference: ReferenceCounter | None = None
        if len(reference):
            from ngramspec.decoding.reference import ReferenceCounter  # most calls have none

            self._reference = ReferenceCounter(reference, stats)
        known = (tokens >= 0) & (tokens < vocab)
        prompt = int(known[: len(reference)].sum())  # its position
        tokens = tokens[known]
        if shared is not None:
            shared.begin(tokens[prompt:], tokens[:prompt])
        self._tokens = np.empty(max(64, 2 * len(tokens)), np.int32)
        self._tokens[: len(tokens)] = tokens
        self._count = len(tokens)
        self._guarded = GuardedSession(vocab, partial(report_fault, stats))
        self._proposed = EMPTY_DRAFT  # the verified part of the session's draft
        self._stopped: Drafter | None = None  # no longer called: too many faults

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the draft sources, indexed by ``Draft.source``; fixed at the session's start."""
        return self._guarded.source_names

    @property
    def evidence(self) -> EvidenceRequest | None:
        """The session's request for evidence from the next forward, or None."""
        return self._guarded.evidence

    def propose(self, limit: int, nodes: int = 0, *, tree: bool = True) -> Draft:
        """Propose a draft, maybe an empty one, with paths of at most ``limit`` tokens.

        A tree may have ``nodes`` nodes if these are more. Near the end of a text this keeps
        branches from shortening the path. A tree without branches is returned as a chain, which
        needs no tree mask.
        """
        guarded = self._guarded
        guarded.use(self._current())
        if limit < 1 or self._gave_up():
            return EMPTY_DRAFT
        try:
            checked = self._call(limit, nodes, tree and self._tree)
        except Exception as error:
            guarded.fault(error)
            guarded.close()
            return EMPTY_DRAFT
        if not len(checked.tokens):
            return EMPTY_DRAFT
        self._proposed = guarded.returned
        part = checked.within(limit)
        if len(part) < len(checked):
            self._proposed = deepcopy(part)
        part = part.as_chain()
        kept = self._controller.keep(part)
        if kept.parents is None and part.parents is not None:
            self._proposed = deepcopy(kept)  # a path of the tree
        return kept

    def path_of(self, draft: Draft) -> Draft:
        """The most probable path of the last draft, to verify instead of the whole tree.

        The draft must be deterministic. A chain is returned unchanged.
        """
        if draft.parents is None or draft.confidence is None:
            return draft
        path = draft.path(likeliest_path(draft.parents, draft.confidence))
        self._proposed = deepcopy(path)
        return path

    def _call(self, limit: int, nodes: int, tree: bool) -> Draft:
        """The session's checked draft, from a new session if none is open. It may raise."""
        guarded = self._guarded
        drafter = guarded.drafter
        if guarded.session is None:
            session = guarded.start(self._tokens[: self._count].copy())
            if self._load is not None:
                session.begin_models(self._load)
            if self._temperature is not None:
                session.begin_sampling(self._temperature, (*self._seed, self._count))
        gamma, cost = self._controller.plan(drafter.estimates)
        tree = tree and (self.always_branches or (cost is not None and bool(drafter.branches)))
        gamma = min(max(limit, nodes) if tree else limit, gamma)
        if gamma < 1:
            return EMPTY_DRAFT
        cost = None if cost is None else cost.copy()  # drafters may change it
        return guarded.propose(gamma, cost, tree=tree)

    def learn(self, draft: Draft, verdict: Verdict, computed: Computed | None = None) -> None:
        """Report a draft's result and the committed tokens to the controller and the session.

        The session gets the verified part of its own draft back, or the path that was chosen from
        it. It may modify that draft and the verdict's lists, which are not used elsewhere.
        """
        drafted = len(draft.tokens)
        if drafted:
            self._controller.observe(drafted, len(verdict.accepted))
        if self._reference is not None:
            before = self._tokens[max(self._count - 2, 0) : self._count]
            self._reference.count(before, draft, verdict.accepted)
        tokens = np.array(verdict.emitted, np.int32)
        evidence = None
        if computed is not None and self.evidence is not None:
            last = int(self._tokens[self._count - 1]) if self._count else 0
            evidence = Evidence.of(draft, verdict.accepted, last, computed)
        self._append(tokens)
        if self._shared is not None:
            self._shared.append(tokens)
        proposed = self._proposed.first(drafted) if drafted else EMPTY_DRAFT
        accepted = tuple(verdict.accepted)
        self._guarded.learn(proposed, accepted, verdict.verified, evidence, tokens)

    def follow(self, other: DraftRunner, tokens: Sequence[int]) -> None:
        """Restart from another row's committed tokens, followed by ``tokens``."""
        self.close()
        self._count = 0
        self._append(other._tokens[: other._count])
        self._append(np.array(tokens, np.int32))

    def close(self) -> None:
        """End the session; the next propose begins a new one."""
        self._guarded.close()

    def end(self, *, well: bool) -> None:
        """End the row's text in shared stores; the remaining tokens are added only if ``well``."""
        if self._shared is not None:
            self._shared.end(well=well)

    def _append(self, tokens: Int32) -> None:
        end = self._count + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(end, np.int32)))
        self._tokens[self._count : end] = tokens
        self._count = end

    def _gave_up(self) -> bool:
        """Whether the drafter has failed too often; its session is closed the first time."""
        guarded = self._guarded
        if not guarded.gave_up:
            self._stopped = None
            return False
        if self._stopped is not guarded.drafter:
            self._stopped = guarded.drafter
            guarded.close()
            self._stats.drafters_stopped += 1
            if self._stats.drafters_stopped == 1:
                what = "%s failed %d times and is no longer called in this generation"
                logger.warning(what, type(guarded.drafter).__name__, MAX_FAULTS)
        return True


def report_fault(stats: DecodeStats, drafter: Drafter, error: Exception) -> None:
    """Count a drafter's fault, and log the first one of all rows."""
    stats.drafter_faults += 1
    if stats.drafter_faults == 1:
        name = type(drafter).__name__
        logger.warning("%s failed, the step has no draft: %r", name, error, exc_info=error)
