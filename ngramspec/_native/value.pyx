"""Drafting by value: copies, resumed copies and n-gram counts under one calibrated estimate.

At every position the candidates (candidates.pxi) are: the token after the longest known match; the
leading continuations of the last one to three tokens and of the one before the last; the token
where the last copy would continue after a substituted one; the one after the best match around
there; and the sequence's most frequent token if there is no other. Each gets P(it is next) from the
calibration (calibration.pxi).

The search makes a chain of the best candidate of each position, or a tree that has a node for every
candidate. Nodes are expanded in order of reach, the probability of their path. The draft is the
prefix of that order with the most expected tokens per cost: Theorem 3.8 of Leviathan et al. 2023
with a measured cost and a probability for each node.

Invariants: drafts depend only on the committed text, the calibration and the outcome of earlier
drafts. No child has more reach than its parent, so the nodes up to the one being expanded keep
their places in the order. Costs: a committed token four counts, a drafted position four look-ups
and at most ``MAX_CANDIDATES`` estimates (in a chain nine); a draft expands at most ``limit``
nodes, and at most LOOKAHEAD after the best end so far; finding places is bounded (text.pxi).
Memory: 4 bytes per token, 32 to 85 per context, 2.3 kB per node of the largest draft. One thread
at a time: a second one gets a RuntimeError while an operation runs without the GIL.
"""

from libc.math cimport exp
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t, uint64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memmove, memset
from posix.stdlib cimport posix_memalign

import numpy as np

cimport numpy as cnp

from ngramspec._native.common cimport (
    MAX_DRAFT, MAX_TOKENS, NONE, TokenStructure, check_ids, floats_of, gamma_of, index_of,
    prefetch_line, process_salt, reserve, tokens_of, xxh64,
)
from ngramspec._native.store_source cimport AHEAD, STORE_PLACES, Found, StoreSource

cnp.import_array()

# One compilation unit in parts; each uses those before it. Their types, in this order:
# ContextKeys, Slot, Text, Place, Recent, ContextTable, CommittedText; Followed, Votes, StorePrior,
# StoreReader; TopRow, Unemitted, HeadRow, TopTokens, HeadRows; Cell, Candidates, Calibration;
# Position, Other, Estimator.
include "text.pxi"
include "reader.pxi"
include "top_tokens.pxi"
include "calibration.pxi"
include "candidates.pxi"

cdef extern from *:
    const float MORE "1.0001f"      # reaches within this factor are ties, whatever the rounding

cdef enum:
    LOOKAHEAD = 12      # nodes inspected after the best end so far
    LOOKAHEAD_TOP = 32      # the same in a tree where top-k candidates are known
    FEW = 64            # tokens committed without releasing the GIL
    REHEARSED = 16      # tokens per chain that is drafted along known text

cdef struct Node:       # a token that may be drafted
    int32_t token
    float p             # P(it is next)
    int32_t parent      # its place in the order, or NONE
    int32_t at          # index of the position that it follows
    int32_t position    # index of the position after it; NONE: not expanded
    int32_t source

cdef struct RankedNode:
    float reach         # P(the path up to and including the node)
    int32_t node

cdef struct Frontier:
    Node* nodes
    RankedNode* order       # by reach; on near ties, the node offered first
    Py_ssize_t node_cap, order_cap
    int limit           # maximum number of nodes
    int n

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


cdef inline Node* insert(Frontier* f, float reach) noexcept nogil:
    """A new node to be filled in; NULL if it is not among the ``limit`` best."""
    cdef int i = f.n
    cdef int32_t node = i
    if i < f.limit:
        f.n += 1
    elif i and f.order[i - 1].reach * MORE < reach:
        i -= 1
        node = f.order[i].node
    else:
        return NULL
    while i and f.order[i - 1].reach * MORE < reach:
        f.order[i] = f.order[i - 1]
        i -= 1
    f.order[i].reach = reach
    f.order[i].node = node
    return &f.nodes[node]


cdef inline Node* ranked(const Frontier* f, int i) noexcept nogil:
    """The ``i``-th node in order."""
    return &f.nodes[f.order[i].node]


cdef inline int child(const Frontier* f, int parent, int32_t token) noexcept nogil:
    """Place in the order of the child of a node with ``token``, or -1."""
    cdef int i
    for i in range(parent + 1, f.n):
        if ranked(f, i).parent == parent and ranked(f, i).token == token:
            return i
    return -1


cdef class DraftSearch(Estimator):
    """Finds the drafts of one sequence."""

    cdef Frontier frontier      # of the last draft
    cdef float least            # reach up to which a tree's nodes are not expanded
    cdef float least_node       # reach below which a tree ends
    cdef float least_rest       # remaining probability above which recent tokens are offered
    cdef int lookahead          # maximum number of a tree's nodes inspected after the best end
    cdef bint tree              # whether the last draft is a tree
    cdef Position* positions    # estimated for it, and not yet learned from
    cdef Py_ssize_t position_cap
    cdef int position_n

    def __dealloc__(self):
        free(self.frontier.nodes)
        free(self.frontier.order)
        free(self.positions)

    cdef int prepare(self, int limit, bint tree) noexcept nogil:
        """Make room for a draft of ``limit`` nodes: 0, or -1 without memory."""
        cdef Frontier* f = &self.frontier
        cdef int room = max(limit, 1)
        cdef bint known = self.top_tokens is not None and self.top_tokens.n
        if (
            reserve(<void**>&f.nodes, &f.node_cap, room, sizeof(Node)) < 0
            or reserve(<void**>&f.order, &f.order_cap, room, sizeof(RankedNode)) < 0
            or reserve(<void**>&self.positions, &self.position_cap, room, sizeof(Position)) < 0
        ):
            return -1
        f.limit = limit
        f.n = 0
        self.tree = tree
        if tree:
            self.committed.count_recent()
            if self.top_tokens is not None:
                self.unemitted_n = self.top_tokens.unemitted(
                    &self.committed.text, &self.committed.recent, self.unemitted
                )
            self.least = MIN_REACH_TOP if known else MIN_REACH_BRANCH
            self.least_node = MIN_REACH_TREE_TOP if known else MIN_REACH_TREE
            self.least_rest = MIN_REST_TOP if known else MIN_REST
            self.lookahead = LOOKAHEAD_TOP if known else LOOKAHEAD
        return 0

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
        cdef int fixed = 0 if self.head is None else self.head.fixed
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
        cdef const Text* text = &self.committed.text
        cdef const Place* places = self.committed.places
        cdef Position* root = &self.positions[0]
        cdef int i, have = <int>min(text.n, ORDERS)
        for i in range(have):
            root.context[ORDERS - have + i] = text.tokens[text.n - have + i]
        root.have = have
        self.committed.look_up(&self.committed.tail, root.known)
        if self.committed.min_match:
            self.committed.find_match(root.known)
        self.committed.find_near()
        root.depth = 0
        root.reach = 1
        for i in range(PLACES):
            root.follows[i] = places[i].at != NONE
        root.length = places[MATCH].length
        root.live = 0
        root.headed = True
        if self.store is not None:
            root.live = self.store.find(text.tokens + text.n, text.n)
            if root.live:
                self.least = min(self.least, MIN_REACH_STORE)
        self.position_n = 1
        self.branch(root, NONE)

    cdef void expand(self, int k) noexcept nogil:
        """Offer what may follow the ``k``-th node."""
        cdef Node* node = ranked(&self.frontier, k)
        cdef const Position* above = &self.positions[node.at]
        cdef Position* p = &self.positions[self.position_n]
        cdef ContextKeys keys
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
        p.headed = (
            above.headed and self.head is not None and p.depth < self.head.n
            and self.head.rows[p.depth].before == node.token
        )
        if above.live:
            p.live = self.store.matching(above.live, above.depth, &above.votes, node.token)
        if p.follows[MATCH]:
            keys = above.copied
        else:
            keys = keys_of(p.context + ORDERS, p.have, self.committed.table.salt)
        self.committed.look_up(&keys, p.known)
        self.branch(p, k)

    cdef void branch(self, Position* at, int parent) noexcept nogil:
        """Estimate a position and offer its best candidate in a chain, all of them in a tree.

        The remaining probability is divided among the recent tokens.
        """
        cdef Candidates* all = &at.candidates
        cdef Other others[RECENT + UNEMITTED]
        cdef float rest = 1, scale, least = 2
        cdef int i, counted
        if self.tree and at.reach > self.least:
            least = self.least / at.reach
        self.estimate(at, least)
        counted = FROM_UNIGRAM if at.fallback else FROM_NGRAM
        if not self.tree:
            if at.head != NULL and at.head.fixed != NONE:
                if not is_candidate(at, at.head.fixed):
                    counted = FROM_HEAD
                self.offer(at, parent, at.head.fixed, at.head.share, counted)
            elif all.n:
                self.offer(at, parent, all.token[at.best], squash(all.odds[at.best]), counted)
            return
        for i in range(all.n):
            all.p[i] = squash(all.odds[i])
            rest -= all.p[i]
        scale = 1 if rest >= 0 else 1 / (1 - rest)
        for i in range(all.n):
            self.offer(at, parent, all.token[i], all.p[i] * scale, counted)
        if self.falls_back and rest * at.reach > self.least_rest:
            for i in range(self.others(at, rest, self.least_node, others)):
                self.offer(at, parent, others[i].token, others[i].p, others[i].source)

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
            self.learn_position(&self.positions[at], tokens[j], self.tree)
            k = child(f, k, tokens[j])
            if k == NONE or ranked(f, k).position == NONE:
                break
            at = ranked(f, k).position
        self.position_n = 0


cdef class ValueEngine(DraftSearch):
    """The structures of one sequence, and drafting with them.

    Args:
        calibration: shared by all sequences of a drafter.
        copies: whether to copy from the committed text.
        counts: whether to draft from n-gram counts.
        falls_back: whether to draft the most frequent token if there is no other candidate.
        min_match: shortest match to copy from, in tokens, >= 1.
        store: a store to draft from in addition to the committed text, or None.
        recycles: whether to draft the target's top-k candidates, see ``recycle``.
        headed: whether to draft a head's tokens, see ``set_head_rows``.
        familiar: what earlier requests of the same conversation learned about the store, or None.
    """

    def __len__(self):
        """Number of committed tokens."""
        return self.committed.text.n

    def draft(self, Py_ssize_t gamma, cost=None):
        """Draft a chain: (tokens int32, confidence float32, source int8), each (n,), n <= gamma.

        ``cost``, float32 (gamma + 2,) or longer, has the cost of a forward of n positions at n.
        None: the draft ends at gamma, or where a path is too improbable. A source is one of
        ``FROM_COPY`` to ``FROM_HEAD``.
        """
        return self.drafted(self.propose(gamma, cost, False))

    def draft_tree(self, Py_ssize_t gamma, cost=None):
        """Draft a tree in order of reach: as ``draft``, with parents int32 after the tokens.

        parents[i] is -1 for the last committed token, else below i.
        """
        cdef cnp.npy_intp i, n = self.propose(gamma, cost, True)
        tokens, confidence, source = self.drafted(n)
        parents = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        for i in range(n):
            (<int32_t*>cnp.PyArray_DATA(parents))[i] = ranked(&self.frontier, <int>i).parent
        return tokens, parents, confidence, source

    def extend(self, tokens):
        """Append committed tokens, int32 (n,), and learn which of the last candidates were right.

        After a TypeError or ValueError nothing was appended; after a MemoryError the tokens before
        the failure were, and the engine stays valid.
        """
        cdef Py_ssize_t count = 0, old
        cdef const int32_t* new = tokens_of(tokens, &count)
        cdef int failed
        if count > MAX_TOKENS - self.committed.text.n:
            raise OverflowError(f"a value engine holds at most {MAX_TOKENS} tokens")
        check_ids(new, count)
        self.idle()
        if count:
            self.learn(new, count)
        if self.head is not None:
            self.head.n = self.head.fixed = 0
        if count == 0:
            return
        old = self.committed.text.n
        if count < FEW:
            failed = self.committed.append(new, count)
        else:
            self.busy = True
            with nogil:
                failed = self.committed.append(new, count)
            self.busy = False
        self.committed.follow(self.committed.text.n - old)
        if self.store is not None:
            self.store.follow(self.committed.text.tokens + old, self.committed.text.n - old)
        if failed:
            raise MemoryError(f"value engine at {self.committed.text.n} tokens")

    def rehearse(self, tokens):
        """Append committed tokens, int32 (n,), and learn from chains drafted along them.

        The tokens are treated as if they were generated: a chain of at most ``REHEARSED`` tokens
        is drafted, its matching tokens and one more are committed, and so on.
        """
        cdef Py_ssize_t at = 0, n = 0, drafted, k
        cdef const int32_t* known = tokens_of(tokens, &n)
        while at < n:
            drafted = self.propose(min(<Py_ssize_t>REHEARSED, n - at - 1), None, False)
            k = 0
            while k < drafted and ranked(&self.frontier, <int>k).token == known[at + k]:
                k += 1
            self.extend(tokens[at : at + k + 1])
            at += k + 1

    def recycle(
        self, tokens, const int32_t[:, ::1] ids, const float[:, ::1] log_probs, accepted=()
    ):
        """Keep the target's most probable tokens after the last token and the draft tokens.

        Of rows after the same tokens the last one is kept, but rows of the text take precedence.
        After a MemoryError the rows before the failure are kept, after other errors none.

        Args:
            tokens: int32 (m,), ids >= 0: the token that each row follows.
            ids: int32 (m, k), >= 0, by descending probability; 8 are kept.
            log_probs: float32 (m, k), the natural logarithms of their probabilities.
            accepted: indices of the rows whose tokens were accepted, in order.
        """
        cdef Py_ssize_t i, m = 0, n = self.committed.text.n
        cdef const int32_t* after = tokens_of(tokens, &m)
        cdef int k = columns_of(ids, log_probs, m)
        cdef int failed = 0
        if self.top_tokens is None or m == 0 or k == 0:
            return
        check_ids(after, m)
        for i in range(m):
            check_ids(&ids[i, 0], k)
        kept = [int(each) for each in accepted]
        for each in kept:
            if not 0 <= each < m:
                raise IndexError(f"accepted must be indices below {m}, got {each}")
        self.idle()
        for depth, i in enumerate([*range(m), *kept], -m):
            failed |= self.top_tokens.put(
                after[i], &ids[i, 0], &log_probs[i, 0], k, <int32_t>(n + max(depth, 0))
            )
            if depth >= 0 and not failed:
                self.top_tokens.put_latest(after[i])
        if failed:
            raise MemoryError("the target's top-k candidates")

    def set_head_rows(
        self, before, const int32_t[:, ::1] ids, const float[:, ::1] log_probs, int depth=0
    ):
        """Add a drafting head's rows for the next draft, in place of those from ``depth`` on.

        ``before``, int32 (m,), is the draft token before each row; that of depth 0 is ignored.
        ``ids`` and ``log_probs`` are those of ``recycle``. ``depth`` is the number of draft tokens
        before the first of the rows, at most the number of rows. After a MemoryError the rows
        before the failure were added, after other errors nothing was changed.
        """
        cdef Py_ssize_t i, m = 0
        cdef const int32_t* path = tokens_of(before, &m, "before")
        cdef int k, first = depth == 0
        if self.head is None or not self.head.fixed <= depth <= self.head.n:
            raise ValueError(f"depth must be the number of a row, got {depth}")
        k = columns_of(ids, log_probs, m)
        if k == 0 or m > MAX_DRAFT:
            raise ValueError(f"ids must have 1 column or more and {MAX_DRAFT} rows or fewer")
        check_ids(path + first, m - first)
        for i in range(m):
            check_ids(&ids[i, 0], k)
        self.idle()
        self.head.n = depth
        for i in range(m):
            if self.head.add(
                path[i] if depth + i > 0 else NONE, &ids[i, 0], &log_probs[i, 0], k
            ) < 0:
                raise MemoryError("the head's rows")

    def fix(self, tokens, shares):
        """Fix the next chain's first tokens, int32 (n,), at positions with rows of the head.

        ``shares``, float32 (n,), are their P(accepted). Tokens fixed earlier are included.
        """
        cdef Py_ssize_t i, n = 0, m = 0
        cdef const int32_t* fixed = tokens_of(tokens, &n)
        cdef const float* accepted = floats_of(shares, &m, "shares")
        check_ids(fixed, n)
        if self.head is None or not self.head.fixed <= n <= self.head.n or m != n:
            raise ValueError(f"there must be a row and a share for each token, got {n} tokens")
        self.idle()
        for i in range(n):
            self.head.rows[i].fixed, self.head.rows[i].share = fixed[i], accepted[i]
        self.head.fixed = <int>n

    def sizeof(self):
        """Bytes allocated, without the shared calibration."""
        parts = (self.committed, self.store, self.top_tokens, self.head)
        return (
            sizeof(ValueEngine)
            + self.frontier.node_cap * sizeof(Node)
            + self.frontier.order_cap * sizeof(RankedNode)
            + self.position_cap * sizeof(Position)
            + sum([part.sizeof() for part in parts if part is not None])
        )

    def credit_store(self, int n):
        """Tell the store that ``n`` tokens that it gave to the last draft were accepted."""
        if self.store is not None:
            self.store.credit(n)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken.

        Returned is the largest number of slots inspected to find a context.
        """
        self.idle()
        for part in (self.store, self.top_tokens, self.head):
            if part is not None:
                part.check_integrity()
        return self.committed.check_integrity()

    cdef cnp.npy_intp propose(self, Py_ssize_t gamma, cost, bint tree) except -1:
        """Draft into the search's frontier; return the number of nodes worth verifying."""
        cdef const float* costs = NULL  # holds no reference: only for reading under the GIL
        cdef Py_ssize_t n = 0
        cdef int most = gamma_of(gamma)
        if cost is not None:
            costs = floats_of(cost, &n, "cost")
            if n < most + 2:
                raise ValueError(f"cost must have {most + 2} entries, got {n}")
        self.idle()
        if self.prepare(most, tree) < 0:
            raise MemoryError(f"a draft of {most} tokens")
        return self.run(costs)

    cdef object drafted(self, cnp.npy_intp n):
        """The first ``n`` nodes: tokens, confidence, source."""
        cdef cnp.npy_intp i
        cdef const Node* node
        tokens = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        confidence = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT32)
        source = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT8)
        for i in range(n):
            node = ranked(&self.frontier, <int>i)
            (<int32_t*>cnp.PyArray_DATA(tokens))[i] = node.token
            (<float*>cnp.PyArray_DATA(confidence))[i] = node.p
            (<int8_t*>cnp.PyArray_DATA(source))[i] = <int8_t>node.source
        return tokens, confidence, source


cdef int columns_of(
    const int32_t[:, ::1] ids, const float[:, ::1] log_probs, Py_ssize_t rows
) except -1:
    """Number of columns of both, or a ValueError unless they have ``rows`` rows of one length."""
    if ids.shape[0] != rows or log_probs.shape[0] != rows or ids.shape[1] != log_probs.shape[1]:
        raise ValueError(f"ids and log_probs must have {rows} rows of one length")
    return <int>min(ids.shape[1], MAX_DRAFT)
