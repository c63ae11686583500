"""Plain-Python twin of the value engine: which token is drafted at a position, and why.

Same methods, arguments and results as the native one, to the last bit: what decides is computed in
float32 and in the native order, so that both round alike. Nothing at run time uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from tests.twins.calibration import Calibration
from tests.twins.candidates import Estimator
from tests.twins.committed import CommittedText
from tests.twins.common import Tokens, committed_ids
from tests.twins.head import HeadRows
from tests.twins.search import DraftSearch
from tests.twins.store_reader import Familiar, Source, StoreReader
from tests.twins.top_tokens import TopTokens

REHEARSED = 16  # tokens of a chain that is drafted along known text


class ValueEngine:
    """One sequence's structures, and the drafting over them; see the native one's arguments."""

    def __init__(
        self,
        calibration: Calibration,
        copies: bool = True,
        counts: bool = True,
        falls_back: bool = True,
        min_match: int = 2,
        store: Source | None = None,
        recycles: bool = False,
        headed: bool = False,
        familiar: Familiar | None = None,
    ) -> None:
        self.calibration = calibration
        self.copies, self.counts, self.falls_back = copies, counts, falls_back
        self.min_match = min_match
        self.committed = CommittedText(min_match if copies else 0)
        self.store = None if store is None else StoreReader(store, familiar)
        self.top_tokens = TopTokens() if recycles else None
        self.head = HeadRows() if headed else None
        estimator = Estimator(
            calibration, self.committed, counts, falls_back, self.store, self.top_tokens, self.head
        )
        self.search = DraftSearch(self.committed, estimator)

    def __len__(self) -> int:
        return len(self.committed.text)

    def draft(self, gamma: int, cost: Any = None) -> tuple[Any, Any, Any]:
        """(tokens int32, confidence float32, source int8) of the chain worth verifying."""
        tokens, _, confidence, source = self.propose(gamma, cost, tree=False)
        return tokens, confidence, source

    def draft_tree(self, gamma: int, cost: Any = None) -> tuple[Any, Any, Any, Any]:
        """(tokens, parents int32, confidence float32, source int8) of the tree worth verifying."""
        return self.propose(gamma, cost, tree=True)

    def propose(self, gamma: int, cost: Any, *, tree: bool) -> tuple[Any, Any, Any, Any]:
        """(tokens, parents, confidence, source) of a chain or tree, each (n,)."""
        drafted = self.search.run(gamma, cost, tree=tree)
        return (
            np.array([node.token for node in drafted], np.int32),
            np.array([node.parent for node in drafted], np.int32),
            np.array([node.p for node in drafted], np.float32),
            np.array([node.source for node in drafted], np.int8),
        )

    def extend(self, tokens: Tokens) -> None:
        """Append committed tokens and learn how the last draft's candidates did."""
        new = [int(token) for token in tokens]
        if not new:
            return
        self.search.learn(new)
        if self.head is not None:
            self.head.rows.clear()
        for token in new:
            self.committed.append(token)
        self.committed.places.follow(self.committed.text, len(new))
        if self.store is not None:
            self.store.follow(new)

    def rehearse(self, tokens: Tokens) -> None:
        """Append committed tokens and learn of chains drafted along them, as if generated."""
        new, at = committed_ids(tokens), 0
        while at < len(new):
            drafted = self.search.run(min(REHEARSED, len(new) - at - 1), None, tree=False)
            pairs = zip(drafted, new[at:], strict=False)
            k = sum(1 for _ in takewhile(lambda pair: pair[0].token == pair[1], pairs))
            self.extend(new[at : at + k + 1])
            at += k + 1
        if self.store is not None:
            self.store.count_anew()

    def credit_store(self, n: int) -> None:
        """Tell the store that tokens of the last draft were accepted: the twin's keeps no count."""

    def recycle(
        self, tokens: Tokens, ids: Any, log_probs: Any, accepted: Sequence[int] = ()
    ) -> None:
        """Keep what the target found most probable after the last token and drafted ones."""
        if self.top_tokens is None:
            return
        nodes, n = committed_ids(tokens), len(self.committed.text)
        rows = [(i, n, False) for i in range(len(nodes))]
        rows += [(i, n + depth, True) for depth, i in enumerate(accepted)]
        for i, since, of_text in rows:
            self.top_tokens.put(nodes[i], committed_ids(ids[i]), log_probs[i], since)
            if of_text:
                self.top_tokens.put_latest(nodes[i])

    def set_head_rows(self, before: Any, ids: Any, log_probs: Any, depth: int = 0) -> None:
        """Add a head's rows in place of those from ``depth`` on."""
        assert self.head is not None
        self.head.read(before, ids, log_probs, depth)

    def fix(self, tokens: Any, shares: Any) -> None:
        """Fix the tokens of the next chain's first positions."""
        assert self.head is not None
        self.head.fix(tokens, shares)

    def store_counts(self) -> tuple[int, int]:
        """(look-ups in the store, those of which a place went on as the text did)."""
        return (0, 0) if self.store is None else (self.store.look_ups, self.store.hits)
