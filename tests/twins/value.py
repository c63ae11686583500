"""Twin of the value engine: the best-first search for the draft, and what a sequence learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from tests.twins.calibration import Real
from tests.twins.candidates import Estimator, Position
from tests.twins.common import Tokens, ints
from tests.twins.reader import PLACES

LOOKAHEAD, LOOKAHEAD_TOP = 12, 32
MIN_REACH_CHAIN, MIN_REACH_TREE, MIN_REACH_BRANCH = Real(0.01), Real(0.004), Real(0.0597)
MIN_REST = Real(0.5)
MIN_REACH_STORE = Real(0.0199)  # MIN_REACH_BRANCH where a store has a match
# Of trees where the target's top-k candidates are known.
MIN_REACH_TREE_TOP, MIN_REACH_TOP = Real(0.002), Real(0.0079)
MIN_REST_TOP = Real(0.3)
REHEARSED = 16  # tokens of a chain that is drafted along known text
MORE = Real(1.0001)  # by which a node must be reached more probably to go before another


@dataclass
class Node:
    """A token that may be drafted: P(it is next), P(the path to it and it), the position after."""

    token: int
    p: Real
    reach: Real
    parent: int
    at: Position
    source: int
    after: Position | None = None


class DraftSearch(Estimator):
    """Drafts of one sequence."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.set_bounds()
        self.root: Position | None = None  # of the last draft
        self.nodes: list[Node] = []  # by reach
        self.tree = False

    def set_bounds(self) -> None:
        """Where a tree ends: further down once the target's top-k candidates are known."""
        known = bool(self.top_tokens)
        self.least = MIN_REACH_TOP if known else MIN_REACH_BRANCH
        self.least_node = MIN_REACH_TREE_TOP if known else MIN_REACH_TREE
        self.least_rest = MIN_REST_TOP if known else MIN_REST
        self.lookahead = LOOKAHEAD_TOP if known else LOOKAHEAD

    def run(self, gamma: int, cost: Any, *, tree: bool) -> list[Node]:
        """Draft best-first: the node reached most probably, then what may come after it.

        Returns:
            The nodes worth verifying, in order of reach.
        """
        self.tree = tree
        self.nodes = []
        if tree:
            self.committed.count_recent()
            self.count_unemitted()
            self.set_bounds()
        self.begin(gamma)
        fixed = 0 if self.head is None else self.head.fixed
        expected, best = Real(1), 0
        highest = Real(0) if cost is None else Real(1) / Real(cost[1])
        for k in range(gamma):
            if k >= len(self.nodes):
                break
            node = self.nodes[k]
            expected += node.reach
            value = Real(0) if cost is None else expected / Real(cost[k + 2])
            if cost is None or value >= highest or k < fixed:
                best, highest = k + 1, value
            least = self.least_node if tree else MIN_REACH_CHAIN
            ahead = self.lookahead if tree else LOOKAHEAD
            faint = node.reach < least and k >= fixed
            if faint or k + 1 >= best + ahead or k + 1 == gamma:
                break
            if not tree or self.worth_expanding(node, gamma):
                node.after = self.after(node)
                self.branch(node.after, k, gamma)
        return self.nodes[:best]

    def begin(self, gamma: int) -> None:
        """Offer what may come after the committed tokens."""
        self.committed.find_places()
        places = self.committed.places
        length = 0 if places.match is None else places.match.length
        self.root = Position([], Real(1), places.match, places.near, length)
        if self.store is not None:
            self.root.live = self.store.find(self.committed.text, PLACES)
            if self.root.live:
                self.least = min(self.least, MIN_REACH_STORE)
        self.branch(self.root, -1, gamma)

    def worth_expanding(self, node: Node, gamma: int) -> bool:
        """Whether a child of a tree's node can be among the best ``gamma``."""
        if len(self.nodes) == gamma and node.reach <= self.nodes[-1].reach:
            return False
        copied = node.at.match is not None and node.token == node.at.placed[0]
        return bool(node.reach > (MIN_REACH_CHAIN if copied else self.least))

    def after(self, node: Node) -> Position:
        """The position after a node: places are followed while the path is theirs."""
        at = node.at
        match = at.match if node.token == at.placed[0] else None
        near = at.near if node.token == at.placed[2] else None
        length = 0 if match is None else at.length + 1
        after = Position([*at.path, node.token], node.reach, match, near, length)
        if at.live and self.store is not None:
            after.live = self.store.matching(at.live, len(at.path), node.token)
        return after

    def branch(self, at: Position, parent: int, gamma: int) -> None:
        """Estimate a position and offer its candidates: of a chain the best, of a tree each.

        The remaining probability is spread over the recent tokens.
        """
        expands = self.tree and at.reach > self.least
        self.estimate(at, self.least / at.reach if expands else Real(2))
        if not self.tree:
            if at.head is not None and at.head.fixed is not None:
                self.offer(at, parent, gamma, at.head.fixed, at.head.share)
            elif at.candidates:
                self.offer(at, parent, gamma, at.best.token, at.best.p)
            return
        rest = Real(1)
        for each in at.candidates:
            rest -= each.p
        scale = Real(1) if rest >= 0 else Real(1 / (1 - float(rest)))
        for each in at.candidates:
            self.offer(at, parent, gamma, each.token, each.p * scale)
        if not self.falls_back or rest * at.reach <= self.least_rest:
            return
        for token, situation in self.others(at):
            p = rest * self.calibration.cell(situation).share()
            if at.reach * p > self.least_node:
                self.offer(at, parent, gamma, token, p)

    def offer(self, at: Position, parent: int, gamma: int, token: int, p: Real) -> None:
        """Insert a node among the best ``gamma``, after those reached as probably."""
        reach = at.reach * p
        place = len(self.nodes)
        while place and self.nodes[place - 1].reach * MORE < reach:
            place -= 1
        source = self.source(at, token)
        self.nodes.insert(place, Node(token, p, reach, parent, at, source))
        del self.nodes[gamma:]

    def learn(self, new: Sequence[int]) -> None:
        """Compare the last draft's candidates with what was committed, as far as they agree."""
        at, above = self.root, -1
        for token in new:
            if at is None:
                break
            self.learn_position(at, token, self.tree)
            at, above = next(
                (
                    (node.after, k)
                    for k, node in enumerate(self.nodes)
                    if node.parent == above and node.token == token
                ),
                (None, above),
            )
        self.root = None
        self.nodes = []


class ValueEngine(DraftSearch):
    """One sequence's structures, and the drafting over them; see the native one's arguments."""

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
        drafted = self.run(gamma, cost, tree=tree)
        return (
            np.array([node.token for node in drafted], np.int32),
            np.array([node.parent for node in drafted], np.int32),
            np.array([node.p for node in drafted], np.float32),
            np.array([node.source for node in drafted], np.int8),
        )

    def extend(self, tokens: Tokens) -> None:
        new = [int(token) for token in tokens]
        if new:
            self.learn(new)
        if self.head is not None:
            self.head.rows.clear()
        if not new:
            return
        for token in new:
            self.committed.append(token)
        self.committed.places.follow(self.committed.text, len(new))
        if self.store is not None:
            self.store.follow(new)

    def rehearse(self, tokens: Tokens) -> None:
        """Append committed tokens and learn of chains drafted along them, as if generated."""
        new, at = ints(tokens), 0
        while at < len(new):
            drafted = self.run(min(REHEARSED, len(new) - at - 1), None, tree=False)
            pairs = zip(drafted, new[at:], strict=False)
            k = sum(1 for _ in takewhile(lambda pair: pair[0].token == pair[1], pairs))
            self.extend(new[at : at + k + 1])
            at += k + 1
        if self.store is not None:
            self.store.count_anew()

    def recycle(
        self, tokens: Tokens, ids: Any, log_probs: Any, accepted: Sequence[int] = ()
    ) -> None:
        """Keep what the target found most probable after the last token and drafted ones."""
        if self.top_tokens is None:
            return
        nodes, n = ints(tokens), len(self.committed.text)
        rows = [(i, n, False) for i in range(len(nodes))]
        rows += [(i, n + depth, True) for depth, i in enumerate(accepted)]
        for i, since, of_text in rows:
            self.top_tokens.put(nodes[i], ints(ids[i]), log_probs[i], since)
            if of_text:
                self.top_tokens.put_latest(nodes[i])

    def set_head_rows(self, before: Any, ids: Any, log_probs: Any, depth: int = 0) -> None:
        assert self.head is not None
        self.head.read(before, ids, log_probs, depth)

    def fix(self, tokens: Any, shares: Any) -> None:
        assert self.head is not None
        self.head.fix(tokens, shares)

    def store_counts(self) -> tuple[int, int]:
        """(look-ups in the store, those of which a place went on as the text did)."""
        return (0, 0) if self.store is None else (self.store.look_ups, self.store.hits)
