"""Best-first search for the draft with the most expected tokens per cost.

A chain follows the best candidate of each position. A tree has a node for every candidate and for
recent tokens. Nodes are expanded in order of reach, the probability of their path (frontier.pxd).
The draft is the prefix of that order with the most expected tokens per cost: Theorem 3.8 of
Leviathan et al. 2023 with a measured cost and a probability for each node.

Costs: a draft expands at most ``limit`` nodes, and at most LOOKAHEAD after the best end so far.
Memory: about 2.3 kB per node of the largest draft so far. One thread at a time.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free

from ngramspec._native.calibration cimport Candidates, squash
from ngramspec._native.cells cimport recent_cell, unemitted_cell
from ngramspec._native.common cimport NONE, reserve
from ngramspec._native.frontier cimport Node, Ranked, child, insert, ranked
from ngramspec._native.head cimport HeadRow
from ngramspec._native.keys cimport CONTEXTS, ORDERS, Keys, keys_of
from ngramspec._native.places cimport MATCH, NEAR, PLACES, RESUME, Place, Text
from ngramspec._native.position cimport (
    FROM_HEAD, FROM_NGRAM, FROM_TOP, FROM_UNIGRAM, Position, is_candidate, source_of,
)
from ngramspec._native.recent cimport Recent
from ngramspec._native.top_tokens cimport Unemitted
from ngramspec._native.store_reader cimport STORE_PLACES

cdef enum:
    LOOKAHEAD = 12      # nodes inspected after the best end so far
    LOOKAHEAD_TOP = 32      # the same in a tree where top-k candidates are known

# Reach, the probability of a path:
cdef float MIN_REACH_CHAIN = 0.01   # a chain ends below it
cdef float MIN_REACH_TREE = 0.004   # a tree ends below it
# Nodes of a tree are not expanded up to this reach, unless they follow the match. 0.06 would be a
# tie of counts, which rounding would decide.
cdef float MIN_REACH_BRANCH = 0.0597
cdef float MIN_REACH_STORE = 0.0199     # the same where a store has a match
cdef float MIN_REST = 0.5   # P(no candidate is next) above which recent tokens are offered
# The last three where top-k candidates are known, which make deeper nodes worth inspecting.
cdef float MIN_REACH_TREE_TOP = 0.002
cdef float MIN_REACH_TOP = 0.0079
cdef float MIN_REST_TOP = 0.3


cdef class DraftSearch:
    """Finds the drafts of one sequence."""

    def __cinit__(self, CommittedText committed not None, Estimator estimator not None):
        self.committed = committed
        self.estimator = estimator

    def __dealloc__(self):
        free(self.frontier.nodes)
        free(self.frontier.order)
        free(self.positions)

    def sizeof(self):
        """Bytes allocated, without the text and the estimator."""
        return (
            sizeof(DraftSearch)
            + self.frontier.node_cap * sizeof(Node)
            + self.frontier.order_cap * sizeof(Ranked)
            + self.position_cap * sizeof(Position)
        )

    cdef int prepare(self, int limit, bint tree) noexcept nogil:
        """Make room for a draft of ``limit`` nodes: 0, or -1 without memory."""
        cdef Frontier* f = &self.frontier
        cdef int room = max(limit, 1)
        if (
            reserve(<void**>&f.nodes, &f.node_cap, room, sizeof(Node)) < 0
            or reserve(<void**>&f.order, &f.order_cap, room, sizeof(Ranked)) < 0
            or reserve(<void**>&self.positions, &self.position_cap, room, sizeof(Position)) < 0
        ):
            return -1
        f.limit = limit
        f.n = 0
        self.tree = tree
        if tree:
            self.committed.count_recent()
            self.estimator.count_unemitted()
            self.set_bounds()
        return 0

    cdef void set_bounds(self) noexcept nogil:
        """Set the bounds of a tree, which are wider once top-k candidates are known."""
        cdef bint known = self.estimator.top_tokens is not None and self.estimator.top_tokens.n
        self.least = MIN_REACH_TOP if known else MIN_REACH_BRANCH
        self.least_node = MIN_REACH_TREE_TOP if known else MIN_REACH_TREE
        self.least_rest = MIN_REST_TOP if known else MIN_REST
        self.lookahead = LOOKAHEAD_TOP if known else LOOKAHEAD

    cdef int run(self, const float* cost) noexcept nogil:
        """Draft into the frontier; return the number of nodes, in order, worth verifying.

        ``cost[n]`` is the cost of a forward of n positions, for n up to limit + 1. NULL: the draft
        is bounded only by reach.
        """
        cdef const Frontier* f = &self.frontier
        cdef int k, best = 0
        cdef float reach, expected = 1, value, highest = 0 if cost == NULL else 1 / cost[1]
        cdef float least = self.least_node if self.tree else MIN_REACH_CHAIN
        cdef int ahead = self.lookahead if self.tree else LOOKAHEAD
        cdef int fixed = 0 if self.estimator.head is None else self.estimator.head.fixed
        self.begin()
        for k in range(f.limit):
            if k >= f.n:
                break
            reach = f.order[k].reach
            expected += reach
            value = 0 if cost == NULL else expected / cost[k + 2]
            if cost == NULL or value >= highest or k < fixed:
                highest = value
                best = k + 1
            if (reach < least and k >= fixed) or k + 1 >= best + ahead or k + 1 == f.limit:
                break
            if not self.tree or (
                reach > (MIN_REACH_CHAIN if self.follows_match(k) else self.least)
                and (f.n < f.limit or reach > f.order[f.n - 1].reach)
            ):
                self.expand(k)
        return best

    cdef bint follows_match(self, int k) noexcept nogil:
        """Whether the path to the ``k``-th node follows the match, which is cheap to expand."""
        cdef const Node* node = ranked(&self.frontier, k)
        cdef const Position* at = &self.positions[node.at]
        return at.follows[MATCH] and node.token == at.placed[MATCH]

    cdef void begin(self) noexcept nogil:
        """Offer what may follow the committed tokens."""
        cdef const Slot* known[CONTEXTS]
        cdef const Text* text = &self.committed.text
        cdef const Place* places = self.committed.places
        cdef Position* root = &self.positions[0]
        cdef int i, have = <int>min(text.n, ORDERS)
        for i in range(have):
            root.context[ORDERS - have + i] = text.tokens[text.n - have + i]
        root.have = have
        self.committed.look_up(&self.committed.tail, known)
        self.committed.find_places(known)
        root.depth = 0
        root.reach = 1
        for i in range(PLACES):
            root.follows[i] = places[i].at != NONE
        root.length = places[MATCH].length
        root.live = 0
        root.headed = True
        if self.estimator.store is not None:
            root.live = self.estimator.store.find(
                text.tokens + text.n, text.n, STORE_PLACES
            )
            if root.live:
                self.least = min(self.least, MIN_REACH_STORE)
        self.position_n = 1
        self.branch(root, NONE, known)

    cdef void expand(self, int k) noexcept nogil:
        """Offer what may follow the ``k``-th node."""
        cdef Node* node = ranked(&self.frontier, k)
        cdef const Position* above = &self.positions[node.at]
        cdef Position* p = &self.positions[self.position_n]
        cdef const Slot* known[CONTEXTS]
        cdef Keys keys
        node.position = self.position_n
        self.position_n += 1
        p.context[0], p.context[1], p.context[2] = above.context[1], above.context[2], node.token
        p.have = min(above.have + 1, ORDERS)
        p.depth = above.depth + 1
        p.reach = self.frontier.order[k].reach
        p.follows[MATCH] = above.follows[MATCH] and node.token == above.placed[MATCH]
        p.follows[RESUME] = above.follows[RESUME]
        p.follows[NEAR] = above.follows[NEAR] and node.token == above.placed[NEAR]
        p.length = above.length + 1 if p.follows[MATCH] else 0
        p.live = 0
        p.headed = above.headed and self.reads(p.depth, node.token)
        if above.live:
            p.live = self.estimator.store.matching(
                above.live, above.depth, &above.votes, node.token
            )
        if p.follows[MATCH]:
            keys = above.copied
        else:
            keys = keys_of(p.context + ORDERS, p.have, self.committed.salt)
        self.committed.look_up(&keys, known)
        self.branch(p, k, known)

    cdef bint reads(self, int depth, int32_t token) noexcept nogil:
        """Whether the head has a row at a depth, after ``token``."""
        if self.estimator.head is None or depth >= self.estimator.head.n:
            return False
        return self.estimator.head.rows[depth].before == token

    cdef void branch(self, Position* at, int parent, const Slot** known) noexcept nogil:
        """Estimate a position and offer its best candidate in a chain, all of them in a tree.

        The remaining probability is divided among the recent tokens.
        """
        cdef Candidates* all = &at.candidates
        cdef const HeadRow* head = NULL
        cdef float rest = 1, scale, least = 2
        cdef int i, counted
        if self.estimator.head is not None:
            head = self.estimator.head.at(at.headed, at.depth)
        if self.tree and at.reach > self.least:
            least = self.least / at.reach
        self.estimator.estimate(at, known, least)
        counted = FROM_UNIGRAM if at.fallback else FROM_NGRAM
        if not self.tree:
            if head != NULL and head.fixed != NONE:
                if not is_candidate(at, head.fixed):
                    counted = FROM_HEAD
                self.offer(at, parent, head.fixed, head.share, counted)
            elif all.n:
                self.offer(at, parent, all.token[at.best], squash(all.odds[at.best]), counted)
            return
        for i in range(all.n):
            all.p[i] = squash(all.odds[i])
            rest -= all.p[i]
        scale = 1 if rest >= 0 else 1 / (1 - rest)
        for i in range(all.n):
            self.offer(at, parent, all.token[i], all.p[i] * scale, counted)
        if self.estimator.falls_back and rest * at.reach > self.least_rest:
            self.offer_recent(at, parent, rest)

    cdef void offer_recent(self, const Position* at, int parent, float rest) noexcept nogil:
        """Offer the recent tokens that are not candidates, with their shares of ``rest``."""
        cdef const Recent* recent = &self.committed.recent
        cdef float p
        cdef int i, age = 0
        for i in range(recent.used):
            while i >> age:
                age += 1
            if self.estimator.is_unemitted(at, recent.token[i]):
                continue
            p = rest * self.estimator.calibration.share(recent_cell(recent.count[i], age))
            if at.reach * p > self.least_node and not is_candidate(at, recent.token[i]):
                self.offer(at, parent, recent.token[i], p, FROM_UNIGRAM)
        if at.depth == 0:
            self.offer_unemitted(at, parent, rest)

    cdef void offer_unemitted(self, const Position* at, int parent, float rest) noexcept nogil:
        """Offer unemitted top-k tokens that are not candidates, with their shares of ``rest``."""
        cdef const Unemitted* each
        cdef float p
        cdef int i
        for i in range(self.estimator.unemitted_n):
            each = &self.estimator.unemitted[i]
            p = rest * self.estimator.calibration.share(
                unemitted_cell(each.back, each.probability, each.recent)
            )
            if at.reach * p > self.least_node and not is_candidate(at, each.token):
                self.offer(at, parent, each.token, p, FROM_TOP)

    cdef void offer(
        self, const Position* at, int parent, int32_t token, float p, int otherwise
    ) noexcept nogil:
        """Insert a node with probability ``p`` at a position, if it is good enough."""
        cdef Node* node = insert(&self.frontier, at.reach * p)
        if node == NULL:
            return
        node.token = token
        node.p = p
        node.parent = parent
        node.at = <int32_t>(at - self.positions)
        node.position = NONE
        node.source = source_of(at, token, otherwise)

    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """Compare the last draft's candidates with the committed tokens, as far as they agree."""
        cdef const Frontier* f = &self.frontier
        cdef int at = 0, k = NONE
        cdef Py_ssize_t j
        if self.position_n == 0:
            return
        for j in range(n):
            self.estimator.learn(&self.positions[at], tokens[j], self.tree)
            k = child(f, k, tokens[j])
            if k == NONE or ranked(f, k).position == NONE:
                break
            at = ranked(f, k).position
        self.position_n = 0
