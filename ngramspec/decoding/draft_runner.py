"""One row's drafting: its session, its draft length, and replacing the drafter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, Draft, Evidence, EvidenceRequest, Int32, Verdict
from ngramspec.draft_length.optimal import likeliest_path
from ngramspec.draft_length.schedule import GammaController
from ngramspec.drafters.base import Drafter, DraftModel
from ngramspec.drafters.guarded import MAX_FAULTS, GuardedSession
from ngramspec.drafters.stored import RowDrafter
from ngramspec.stats import DecodeStats
from ngramspec.verification.evidence import Computed

logger = logging.getLogger("ngramspec")


class DraftRunner:
    """Gets a row's drafts from the current drafter.

    A drafter's errors cost drafts only, see ``GuardedSession``. The first fault of a generation is
    logged, and every fault is counted in the statistics.

    Drafters never see ids that the target has no logits for: placeholders of images, for example,
    or a reference text's ids of another vocabulary. The target never emits them. And a stochastic
    drafter that samples one of them would lose just those drafts, because of a sampled token.
    Tokens committed later are always the target's own.

    Args:
        current: returns the drafter to use. If it is another one than before, it replaces it.
        controller: how many tokens to draft.
        tokens: the committed tokens, int32 (n,); those outside 0..vocab - 1 are left out.
        vocab: size of the target's vocabulary.
        stats: of the run, where faults are counted.
        tree: whether drafts may be trees.
        always: whether they may be trees also where no cost says which branches are worth it.
        temperature: that tokens are sampled at; None: they are not.
        seed: of the call and the row, for drafts that are sampled.
        shared: adds the row's text to the shared stores that the call names; None: nothing does.
        positionless_token: an id after which the target numbers positions differently in a wider
            forward: drafts end before it, and none begins after it. None: there is none.
        load: opens the models of sessions that draft by one; None: there are none.
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
        positionless_token: int | None = None,
        load: Callable[[Any], DraftModel] | None = None,
        shared: RowDrafter | None = None,
    ) -> None:
        self._current = current
        self._controller = controller
        self._vocab = vocab
        self._stats = stats
        self._tree = tree
        self.always_branches = always
        self._temperature = temperature
        self._seed = seed
        self._positionless_token = positionless_token
        self._load = load
        tokens = tokens[(tokens >= 0) & (tokens < vocab)]
        self._shared = shared
        if shared is not None:
            shared.begin(tokens)
        self._tokens = np.empty(max(64, 2 * len(tokens)), np.int32)
        self._tokens[: len(tokens)] = tokens
        self._count = len(tokens)
        self._guarded = GuardedSession(vocab, self._report_fault)
        self._proposed = EMPTY_DRAFT  # the session's own draft, as far as it is verified
        self._stopped: Drafter | None = None  # the drafter that is not called any more

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names that the sources of the last draft index, as they were at the start."""
        return self._guarded.tiers

    @property
    def evidence(self) -> EvidenceRequest | None:
        """What the session asks of the next forward; None: nothing, or there is no session."""
        return self._guarded.evidence

    def propose(self, limit: int, nodes: int = 0, *, tree: bool = True) -> Draft:
        """A draft of paths of at most ``limit`` tokens, or the empty one.

        Args:
            limit: most tokens of a chain, and of a path of a tree.
            nodes: most nodes of a tree, if more than ``limit``: near the end of a text branches do
                not take the place of the path.
            tree: whether it may be a tree. A tree without branches is returned as a chain, which
                needs no mask of its own.
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
        if checked is None:
            return EMPTY_DRAFT
        self._proposed = guarded.returned
        part = checked.within(limit)
        if len(part) < len(checked):
            self._proposed = deepcopy(part)
        placed = self._placed(part).as_chain()
        kept = self._controller.keep(placed)
        if kept.parents is None and placed.parents is not None:
            self._proposed = deepcopy(kept)  # a path of the tree
        return kept

    def path_of(self, draft: Draft) -> Draft:
        """The most probable path of the last draft, a deterministic tree, to verify in its place.

        A chain is returned as it is.
        """
        if draft.parents is None or draft.confidence is None:
            return draft
        path = draft.path(likeliest_path(draft.parents, draft.confidence))
        self._proposed = deepcopy(path)
        return path

    def _placed(self, draft: Draft) -> Draft:
        """As much of a chain as the target numbers correctly.

        Of a sampled chain that is nothing: no sampled token may decide how many are verified.
        """
        if self._positionless_token is None or not len(draft):
            return draft
        last = self._last() if self._count else self._positionless_token
        if last == self._positionless_token or draft.proposal is not None:
            return EMPTY_DRAFT
        wrong = (draft.tokens == self._positionless_token).nonzero()[0]
        return draft.first(int(wrong[0])) if len(wrong) else draft

    def _call(self, limit: int, nodes: int, tree: bool) -> Draft | None:
        """The session's draft, checked; None: the controller wants none. It may raise."""
        guarded = self._guarded
        if guarded.session is None:
            self._start()
        drafter = guarded.drafter
        gamma, cost = self._controller.plan(drafter.estimates)
        tree = tree and (self.always_branches or (cost is not None and bool(drafter.branches)))
        gamma = min(max(limit, nodes) if tree else limit, gamma)
        if gamma < 1:
            return None
        cost = None if cost is None else cost.copy()  # the controller's own stays as it is
        return guarded.propose(gamma, cost, tree=tree)

    def _start(self) -> None:
        """Start a session from the committed tokens."""
        session = self._guarded.start(self._tokens[: self._count].copy())
        if self._load is not None:
            session.begin_models(self._load)
        if self._temperature is not None:
            session.begin_sampling(self._temperature, (*self._seed, self._count))

    def learn(self, draft: Draft, verdict: Verdict, computed: Computed | None = None) -> None:
        """Tell the controller and the session the result of a draft, and what was committed.

        The session gets its own draft back, or the path of it that was chosen, as far as it was
        verified. It may change that draft and the lists of the verdict: nothing else uses them.

        Args:
            draft: as it was verified.
            verdict: on it.
            computed: what the forward gave of evidence, or None.
        """
        if len(draft):
            self._controller.observe(len(draft), len(verdict.accepted))
        tokens = np.array(verdict.emitted, np.int32)
        evidence = None
        if computed is not None and self.evidence is not None:
            evidence = Evidence.of(draft, verdict.accepted, self._last(), computed)
        self._append(tokens)
        if self._shared is not None:
            self._shared.append(tokens)
        if self._guarded.session is not None:
            proposed = self._proposed.first(len(draft)) if len(draft) else EMPTY_DRAFT
            accepted = tuple(verdict.accepted)
            self._guarded.learn(proposed, accepted, verdict.tested, evidence, tokens)

    def follow(self, other: DraftRunner, tokens: Sequence[int]) -> None:
        """Start again from another row's committed tokens, followed by ``tokens``."""
        self.close()
        self._count = 0
        self._append(other._tokens[: other._count])
        self._append(np.array(tokens, np.int32))

    def close(self) -> None:
        """End the session; the next propose begins a new one."""
        self._guarded.close()

    def end(self, *, well: bool) -> None:
        """End the row's text in shared stores; only one that ends well adds what is left of it."""
        if self._shared is not None:
            self._shared.end(well=well)

    def _last(self) -> int:
        """The last committed token; 0 where none was of the vocabulary."""
        return int(self._tokens[self._count - 1]) if self._count else 0

    def _append(self, tokens: Int32) -> None:
        end = self._count + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(end, np.int32)))
        self._tokens[self._count : end] = tokens
        self._count = end

    def _report_fault(self, drafter: Drafter, error: Exception) -> None:
        if self._stats.count_fault():  # the first one of all rows
            name = type(drafter).__name__
            logger.warning("%s failed, the step goes on undrafted: %r", name, error, exc_info=error)

    def _gave_up(self) -> bool:
        """Whether the drafter is not called any more; the first time, close its session."""
        guarded = self._guarded
        if guarded.gave_up and self._stopped is not guarded.drafter:
            self._stopped = guarded.drafter
            guarded.close()
            if self._stats.count_stopped_drafter():
                what = "%s failed %d times and is not called any more in this generation"
                logger.warning(what, type(guarded.drafter).__name__, MAX_FAULTS)
        elif not guarded.gave_up:
            self._stopped = None
        return guarded.gave_up
