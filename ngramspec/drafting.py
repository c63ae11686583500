"""The drafting side of one generation: its session, hot swaps, and a drafter's faults."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from ngramspec.checks import check_draft
from ngramspec.controller import GammaController
from ngramspec.draft import (
    EMPTY_DRAFT,
    DecodeStats,
    Draft,
    Drafter,
    DraftSession,
    Int32,
    Verdict,
)

logger = logging.getLogger("ngramspec")


class Drafting:
    """Asks the current drafter, whichever that is at each step, and survives its errors.

    A drafter that raises, or returns what cannot be verified, costs its draft: the step goes on
    undrafted, the fault is logged once a generation and counted in the statistics. A session that
    raised is closed and begun anew from the committed tokens.

    Args:
        current: returns the drafter to use; another one than before is a hot swap.
        controller: how many tokens to ask for.
        tokens: the committed tokens, int32 (n,).
        vocab: size of the target's vocabulary.
        stats: where faults are counted.
        tree: whether drafts may be trees,
        always: and that also where no cost says which branches are worth it.
        temperature: that tokens are sampled at; None: they are not.
        seed: of the call and the row, for drafts that are drawn.
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
    ) -> None:
        self._current = current
        self._controller = controller
        self._vocab = vocab
        self._stats = stats
        self._tree = tree
        self._always = always
        self._temperature = temperature
        self._seed = seed
        self._tokens = np.empty(max(64, 2 * len(tokens)), np.int32)
        self._tokens[: len(tokens)] = tokens
        self._count = len(tokens)
        self._drafter: Drafter | None = None
        self._session: DraftSession | None = None
        self._proposed = EMPTY_DRAFT  # as the session proposed it
        self._logged = False

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tier names that the sources of the last draft index."""
        return () if self._drafter is None else self._drafter.tiers

    def propose(self, limit: int, *, tree: bool = True) -> Draft:
        """A draft of at most ``limit`` tokens, or the empty one; a chain if trees are not to be.

        A tree without branches comes as a chain: it needs no mask of its own.
        """
        drafter, tree = self._current(), tree and self._tree
        if drafter is not self._drafter:
            self.close()
            self._drafter = drafter
        if limit < 1:
            return EMPTY_DRAFT
        try:
            if self._session is None:
                self._session = drafter.start(self._tokens[: self._count].copy())
                if self._temperature is not None:
                    self._session.heat(self._temperature, (*self._seed, self._count))
            gamma, cost = self._controller.plan(drafter.estimates)
            gamma = min(limit, gamma)
            if gamma < 1:
                return EMPTY_DRAFT
            tree = tree and (self._always or (cost is not None and drafter.branches))
            draft = self._session.propose(gamma, cost, tree=tree)
        except Exception as error:
            self._fault(error)
            self.close()
            return EMPTY_DRAFT
        try:
            tiers = len(drafter.tiers)
            self._proposed = check_draft(draft, gamma, self._vocab, tree=tree, tiers=tiers)
        except (TypeError, ValueError) as error:
            self._fault(error)
            return EMPTY_DRAFT
        return self._proposed.straight()

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Tell the controller and the session what became of a draft, and what was committed."""
        if len(draft):
            self._controller.observe(len(draft), len(verdict.accepted))
        tokens = np.array(verdict.emitted, np.int32)
        self._append(tokens)
        if self._session is None:
            return
        try:
            if len(draft):
                branched = self._proposed.parents is not None  # then it was not cut
                draft = self._proposed if branched else draft
                self._session.observe(draft, verdict.accepted, verdict.tested)
            self._session.extend(tokens)
        except Exception as error:
            self._fault(error)
            self.close()

    def close(self) -> None:
        """End the session; the next propose begins a new one."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.close()
        except Exception as error:
            self._fault(error)

    def _append(self, tokens: Int32) -> None:
        end = self._count + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(end, np.int32)))
        self._tokens[self._count : end] = tokens
        self._count = end

    def _fault(self, error: Exception) -> None:
        self._stats.drafter_faults += 1
        if not self._logged:
            self._logged = True
            name = type(self._drafter).__name__
            logger.warning("%s failed, the step goes on undrafted: %r", name, error, exc_info=error)
