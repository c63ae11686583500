"""Collecting the candidates of a position, estimating them, and learning from the next token.

The candidates are the token at each place, the leading continuations of each context, and, where
there are none, the sequence's most frequent token. Cells (cells.pxd) describe each candidate, and
the calibration mixes them to P(it is next). A position costs at most MOST_CANDIDATES estimates, in
a chain nine. To add a source of candidates, add places or contexts, its cells, its turn in
``collect`` and its inputs in ``describe``. One thread at a time.
"""

from libc.stdint cimport int32_t

from ngramspec._native.calibration cimport ROOM, Candidates, squash
from ngramspec._native.cells cimport (
    ACCEPTANCES, HEADLESS_SETS, LENGTHS, PAIR_CELLS, PAIR_INPUT, TOP_CELLS, TOP_INPUT,
    length_bucket, recent_cell, store_set, unemitted_cell,
)
from ngramspec._native.common cimport NONE
from ngramspec._native.contexts cimport LEADERS, leader
from ngramspec._native.head cimport FAINT_CHANCE, HeadRow
from ngramspec._native.keys cimport ORDERS, SKIP, keys_of
from ngramspec._native.lanes cimport set_cells
from ngramspec._native.places cimport MATCH, PLACES, RESUME, Place, token_at
from ngramspec._native.position cimport Position, is_candidate
from ngramspec._native.recent cimport Recent
from ngramspec._native.top_tokens cimport FAINT, Row, Unemitted
from ngramspec._native.situations cimport add_contexts, add_head, add_places, add_row, add_store
from ngramspec._native.store_reader cimport Votes

cdef float ACCEPTANCE_RATE = 0.15   # weight of the newest outcome in ``acceptance``


cdef class Estimator:
    """Estimates P(next) of the candidates of one sequence.

    ``counts``: continuations of contexts are candidates. ``falls_back``: so is the most frequent
    token where there is no other.
    """

    def __cinit__(
        self, Calibration calibration not None, CommittedText committed not None, bint counts,
        bint falls_back, StoreReader store=None, TopTokens top_tokens=None, HeadRows head=None,
    ):
        self.head = head
        self.store = store
        self.top_tokens = top_tokens
        self.calibration = calibration
        self.committed = committed
        self.counts = counts
        self.falls_back = falls_back
        self.acceptance = 0.5 if store is None else store.familiar.acceptance

    cdef void estimate(self, Position* at, const Slot** known, float least) noexcept nogil:
        """Find the tokens that may come next at a position, and their probabilities.

        The position has its context, depth, follows and length set; ``known`` are its contexts,
        NULL where one never occurred. A kept continuation with a higher share than ``least`` is a
        candidate; > 1: only leaders.
        """
        cdef Candidates* all = &at.candidates
        cdef const Place* places = self.committed.places
        cdef const Row* rows[2]
        cdef const HeadRow* head = NULL
        cdef int i
        if self.head is not None:
            head = self.head.at(at.headed, at.depth)
        at.leads = head.token[0] if head != NULL and head.n else NONE
        for i in range(PLACES):
            at.placed[i] = token_at(&places[i], at.depth, i == MATCH) if at.follows[i] else NONE
        if at.follows[MATCH]:
            at.context[ORDERS] = at.placed[MATCH]
            at.copied = keys_of(at.context + ORDERS + 1, at.have + 1, self.committed.salt)
            self.committed.prefetch(&at.copied)  # looked up if this token is drafted
        if self.store is not None:
            self.store.vote(at.live, at.depth, &at.votes)
        else:
            at.votes.n = at.votes.length = 0
            at.votes.familiar = at.votes.nearest = at.votes.resumed = NONE
        rows[0] = rows[1] = NULL
        if self.top_tokens is not None and at.have:
            rows[0] = self.top_tokens.row_of(at.context[ORDERS - 1])
            if at.have > 1:
                rows[1] = self.top_tokens.pair_of(at.context[ORDERS - 2], at.context[ORDERS - 1])
        all.n = self.collect(at, known, rows, head, least)
        at.best = all.inputs = 0
        if all.n == 0:
            return
        self.describe(at, known, rows, head)
        self.calibration.mix(all)
        for i in range(1, all.n):
            if all.odds[i] > all.odds[at.best]:
                at.best = i

    cdef void describe(
        self, Position* at, const Slot** known, const Row** rows, const HeadRow* head
    ) noexcept nogil:
        """Set the inputs of a position's candidates, and the cells and weights of each."""
        cdef Candidates* all = &at.candidates
        cdef int32_t own[ROOM]
        cdef int acceptance = min(<int>(ACCEPTANCES * self.acceptance), ACCEPTANCES - 1)
        cdef int32_t resumed = at.placed[RESUME]
        cdef int orders = 0, length, weights
        while orders < ORDERS and known[orders] != NULL:
            orders += 1
        length = length_bucket(max(at.length, orders))
        weights = 3 * length
        if self.store is not None:
            weights += 3 * LENGTHS * store_set(
                max(at.length, orders), at.votes.length, self.store.earlier
            )
        if head != NULL:
            weights += HEADLESS_SETS
        if resumed == NONE:
            set_cells(all.token, all.n, NONE, 0, weights, all.set)
        else:
            set_cells(all.token, all.n, resumed, weights + 1, weights + 2, all.set)
        set_cells(all.token, all.n, NONE, 0, 0, all.standing)
        add_contexts(at, known, own)
        add_places(at, self.committed.places, acceptance, length)
        if self.store is not None:
            add_store(at, self.store, own)
        if rows[0] != NULL:
            add_row(all, TOP_INPUT, TOP_CELLS, rows[0], self.committed.text.n)
        if rows[1] != NULL:
            add_row(all, PAIR_INPUT, PAIR_CELLS, rows[1], self.committed.text.n)
        if head != NULL:
            add_head(at, head, own)

    cdef void count_unemitted(self) noexcept nogil:
        """List the top-k tokens that the target did not emit, before a tree."""
        if self.top_tokens is not None:
            self.unemitted_n = self.top_tokens.unemitted(
                &self.committed.text, &self.committed.recent, self.unemitted
            )

    cdef int collect(
        self, Position* at, const Slot** known, const Row** rows, const HeadRow* head, float least
    ) noexcept nogil:
        """Collect the different tokens that may come next; return their number.

        On ties, earlier ones are preferred. Where branches are wanted, ``least`` is at most 1.
        """
        cdef int32_t* tokens = at.candidates.token
        cdef int count = 0, m, i
        if at.placed[MATCH] != NONE:
            tokens[0] = at.placed[MATCH]
            count = 1
        if at.leads != NONE:
            count = with_token(tokens, count, at.leads)
        if self.counts:
            for m in range(ORDERS - 1, -1, -1):
                if known[m] != NULL:
                    count = with_token(tokens, count, known[m].token[leader(known[m])])
        for i in range(MATCH + 1, PLACES):
            if at.placed[i] != NONE:
                count = with_token(tokens, count, at.placed[i])
        count = self.collect_store(&at.votes, least, tokens, count)
        if self.counts and known[SKIP] != NULL:
            count = with_token(tokens, count, known[SKIP].token[leader(known[SKIP])])
        if self.counts and least <= 1:
            for m in range(ORDERS - 1, -1, -1):
                if known[m] != NULL:
                    for i in range(LEADERS):
                        if known[m].count[i] > least * known[m].total:
                            count = with_token(tokens, count, known[m].token[i])
        at.recycled = count
        for m in range(1, -1, -1):
            for i in range(rows[m].n if rows[m] != NULL else 0):
                if i == 0 or (least <= 1 and rows[m].probability[i] < FAINT):
                    count = with_token(tokens, count, rows[m].token[i])
        at.ranked = count
        for i in range(1, head.n if head != NULL and least <= 1 else 0):
            if head.chance[i] < FAINT_CHANCE:
                count = with_token(tokens, count, head.token[i])
        at.fallback = count == 0
        if count == 0 and self.falls_back and self.committed.unigrams.total:
            tokens[0] = self.committed.unigrams.token[leader(&self.committed.unigrams)]
            count = at.recycled = at.ranked = 1
        return count

    cdef int collect_store(
        self, const Votes* votes, float least, int32_t* tokens, int count
    ) noexcept nogil:
        """Add a store's tokens: the leading ones by each measure, or all above the share."""
        cdef int i
        if least <= 1:
            for i in range(votes.n):
                if votes.count[i] > least * votes.total or votes.other[i] > least * votes.others:
                    count = with_token(tokens, count, votes.token[i])
        elif votes.n:
            count = with_token(tokens, count, votes.token[votes.leading])
            if votes.others:
                count = with_token(tokens, count, votes.token[votes.leading_other])
            if votes.familiar != NONE:
                count = with_token(tokens, count, votes.token[votes.familiar])
        if votes.resumed != NONE:
            count = with_token(tokens, count, votes.resumed)
        return count

    cdef void learn(self, const Position* at, int32_t token, bint tree) noexcept nogil:
        """Compare a position's candidates, in a tree also recent tokens, with the next token."""
        cdef const Recent* recent = &self.committed.recent
        cdef const Candidates* all = &at.candidates
        cdef int i, age = 0
        cdef bint right, any = False
        for i in range(all.n):
            right = all.token[i] == token
            self.calibration.learn(all, i, all.p[i] if tree else squash(all.odds[i]), right)
            any = any or right
        if all.n and at.leads == NONE:  # it describes the text's own sources
            right = all.token[at.best] == token
            self.acceptance += ACCEPTANCE_RATE * (<float>right - self.acceptance)
            if self.store is not None:
                self.store.familiar.acceptance = self.acceptance
        if any or not tree or not self.falls_back:
            return
        for i in range(recent.used):
            while i >> age:
                age += 1
            if not is_candidate(at, recent.token[i]) and not self.is_unemitted(at, recent.token[i]):
                right = recent.token[i] == token
                self.calibration.learn_share(recent_cell(recent.count[i], age), right)
        if at.depth == 0:
            self.learn_unemitted(at, token)

    cdef void learn_unemitted(self, const Position* at, int32_t token) noexcept nogil:
        """Compare the unemitted top-k tokens with the next token of the text."""
        cdef const Unemitted* each
        cdef int i
        for i in range(self.unemitted_n):
            each = &self.unemitted[i]
            if not is_candidate(at, each.token):
                self.calibration.learn_share(
                    unemitted_cell(each.back, each.probability, each.recent), each.token == token
                )


cdef inline int with_token(int32_t* tokens, int n, int32_t token) noexcept nogil:
    """Append a token unless it is among the ``n`` tokens; the new number of tokens."""
    cdef int i
    for i in range(n):
        if tokens[i] == token:
            return n
    tokens[n] = token
    return n + 1
