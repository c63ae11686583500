"""Twin of the best-first search for the draft with the most expected tokens per cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.twins.calibration import Real
from tests.twins.candidates import Estimator, Position
from tests.twins.committed import CommittedText
from tests.twins.store_reader import PLACES

LOOKAHEAD, LOOKAHEAD_TOP = 12, 32
MIN_REACH_CHAIN, MIN_REACH_TREE, MIN_REACH_BRANCH = Real(0.01), Real(0.004), Real(0.0597)
MIN_REST = Real(0.5)
MIN_REACH_STORE = Real(0.0199)  # MIN_REACH_BRANCH where a store has a match
# Of trees where the target's top-k candidates are known.
MIN_REACH_TREE_TOP, MIN_REACH_TOP = Real(0.002), Real(0.0079)
MIN_REST_TOP = Real(0.3)
MORE = Real(1.0001)  # by which a node must be reached more probably to go before another


@dataclass
class Node:
    """A token that may be drafted: P(it is next), P(the path to it and it), the position behind."""

    token: int
    p: Real
    reach: Real
    parent: int
    at: Position
    source: int
    behind: Position | None = None


class DraftSearch:
    """Drafts of one sequence."""

    def __init__(self, committed: CommittedText, estimator: Estimator) -> None:
        self.committed = committed
        self.estimator = estimator
        self.set_bounds()
        self.root: Position | None = None  # of the last draft
        self.nodes: list[Node] = []  # by reach
        self.tree = False

    def set_bounds(self) -> None:
        """Where a tree ends: further down once the target's top-k candidates are known."""
        known = bool(self.estimator.top_tokens)
        self.least = MIN_REACH_TOP if known else MIN_REACH_BRANCH
        self.least_node = MIN_REACH_TREE_TOP if known else MIN_REACH_TREE
        self.least_rest = MIN_REST_TOP if known else MIN_REST
        self.lookahead = LOOKAHEAD_TOP if known else LOOKAHEAD

    def run(self, gamma: int, cost: Any, *, tree: bool) -> list[Node]:
        """Draft best-first: the node reached most probably, then what may come behind it.

        Returns:
            The nodes worth verifying, in order of reach.
        """
        self.tree = tree
        self.nodes = []
        if tree:
            self.committed.count_recent()
            self.estimator.count_unemitted()
            self.set_bounds()
        self.begin(gamma)
        fixed = 0 if self.estimator.head is None else self.estimator.head.fixed
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
                node.behind = self.behind(node)
                self.branch(node.behind, k, gamma)
        return self.nodes[:best]

    def begin(self, gamma: int) -> None:
        """Offer what may come behind the committed tokens."""
        self.committed.find_places()
        places = self.committed.places
        length = 0 if places.match is None else places.match.length
        self.root = Position([], Real(1), places.match, places.near, length)
        if self.estimator.store is not None:
            self.root.live = self.estimator.store.find(self.committed.text, PLACES)
            if self.root.live:
                self.least = min(self.least, MIN_REACH_STORE)
        self.branch(self.root, -1, gamma)

    def worth_expanding(self, node: Node, gamma: int) -> bool:
        """Whether a child of a tree's node can be among the best ``gamma``."""
        if len(self.nodes) == gamma and node.reach <= self.nodes[-1].reach:
            return False
        copied = node.at.match is not None and node.token == node.at.placed[0]
        return bool(node.reach > (MIN_REACH_CHAIN if copied else self.least))

    def behind(self, node: Node) -> Position:
        """The position behind a node: places are followed while the path is theirs."""
        at = node.at
        match = at.match if node.token == at.placed[0] else None
        near = at.near if node.token == at.placed[2] else None
        length = 0 if match is None else at.length + 1
        behind = Position([*at.path, node.token], node.reach, match, near, length)
        if at.live and self.estimator.store is not None:
            behind.live = self.estimator.store.matching(at.live, len(at.path), node.token)
        return behind

    def branch(self, at: Position, parent: int, gamma: int) -> None:
        """Estimate a position and offer its candidates: of a chain the best, of a tree each.

        The remaining probability is spread over the recent tokens.
        """
        expands = self.tree and at.reach > self.least
        self.estimator.estimate(at, self.least / at.reach if expands else Real(2))
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
        if not self.estimator.falls_back or rest * at.reach <= self.least_rest:
            return
        for token, situation in self.estimator.others(at):
            p = rest * self.estimator.calibration.cell(situation).share()
            if at.reach * p > self.least_node:
                self.offer(at, parent, gamma, token, p)

    def offer(self, at: Position, parent: int, gamma: int, token: int, p: Real) -> None:
        """Insert a node among the best ``gamma``, behind those reached as probably."""
        reach = at.reach * p
        place = len(self.nodes)
        while place and self.nodes[place - 1].reach * MORE < reach:
            place -= 1
        source = self.estimator.source(at, token)
        self.nodes.insert(place, Node(token, p, reach, parent, at, source))
        del self.nodes[gamma:]

    def learn(self, new: Sequence[int]) -> None:
        """Compare the last draft's candidates with what was committed, as far as they agree."""
        at, above = self.root, -1
        for token in new:
            if at is None:
                break
            self.estimator.learn(at, token, self.tree)
            at, above = next(
                (
                    (node.behind, k)
                    for k, node in enumerate(self.nodes)
                    if node.parent == above and node.token == token
                ),
                (None, above),
            )
        self.root = None
        self.nodes = []
