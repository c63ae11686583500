"""Collecting the candidates of a position, estimating them, and learning from what came.

The candidates are the token at each place, the leading continuations of each context, and where
there are none the sequence's most frequent token. Each is described by cells (cells.pxd), which the
calibration mixes to P(it is next). A position costs MOST_CANDIDATES estimates at most, in a chain
nine. A further source of candidates adds places or contexts, its cells, and its turn in
``collect``. One thread at a time.
"""

from libc.stdint cimport int16_t, int32_t

from ngramspec._native.calibration cimport add_cell
from ngramspec._native.cells cimport (
    ACCEPTANCES, FAMILIAR_INPUT, LENGTHS, MATCH_INPUT, NEAR_INPUT, NEAREST_INPUT, PAIR_CELLS,
    PAIR_INPUT, RESUME_INPUT, RUNNER_CELLS, RUNNER_INPUT, SESSION_INPUT, STORE_BLOCK, STORE_CELLS,
    STORE_INPUT, STORE_OTHER_CELLS, STORE_OTHER_INPUT, STORE_RESUME_CELLS, STORE_RESUME_INPUT,
    context_cell, familiar_cell, length_bucket, match_cell, near_cell, nearest_cell, recent_cell,
    resume_cell, runner_cell, session_cell, standing_of, store_cell, store_resume_cell, store_set,
    unsaid_cell,
)
from ngramspec._native.store_reader cimport Votes
from ngramspec._native.common cimport NONE
from ngramspec._native.contexts cimport count_of, leader
from ngramspec._native.keys cimport SKIP, keys_of
from ngramspec._native.places cimport MATCH, NEAR, RESUME, Place, token_at
from ngramspec._native.recent cimport Recent
from ngramspec._native.runners cimport FAINT, RANKS, Row, Unsaid, age_bucket, rank_of

cdef enum:
    NOT_KNOWN = -1      # what a store says of a candidate: nothing

cdef float ACCEPTANCE_RATE = 0.15   # of the newest outcome in ``acceptance``


cdef class Estimator:
    """Estimates P(next) of the candidates of one sequence.

    Args:
        calibration: shared by all sequences of a drafter.
        committed: the sequence's text.
        counts: whether continuations of contexts are candidates.
        falls_back: whether the most frequent token is one where nothing else is known.
        store: what is known beside the text, or None.
        runners: the target's runners-up, or None.
    """

    def __cinit__(
        self, Calibration calibration not None, CommittedText committed not None, bint counts,
        bint falls_back, StoreReader store=None, RunnersUp runners=None,
    ):
        self.store = store
        self.runners = runners
        self.calibration = calibration
        self.committed = committed
        self.counts = counts
        self.falls_back = falls_back
        self.acceptance = 0.5

    cdef void estimate(self, Position* at, const Slot** known, float least) noexcept nogil:
        """Find what may come at a position, and how probably.

        Args:
            at: with its context, depth, follows and length set.
            known: its contexts, NULL where one never occurred.
            least: the share from which every kept continuation is a candidate; > 1: only leaders.
        """
        cdef int32_t tokens[MOST_CANDIDATES]
        cdef const Place* places = self.committed.places
        cdef Candidate* c
        cdef const Row* rows[2]
        cdef int orders = 0, i, length, acceptance, store, own, says, agreement = 0
        for i in range(PLACES):
            at.placed[i] = token_at(&places[i], at.depth, i == MATCH) if at.follows[i] else NONE
        if at.follows[MATCH]:
            at.context[ORDERS] = at.placed[MATCH]
            at.copied = keys_of(at.context + ORDERS + 1, at.have + 1, self.committed.salt)
            self.committed.prefetch(&at.copied)  # looked up if this is drafted
        if self.store is not None:
            self.store.vote(at.live, at.depth, &at.votes)
        else:
            at.votes.n = at.votes.length = 0
            at.votes.familiar = at.votes.nearest = at.votes.resumed = NONE
        rows[0] = rows[1] = NULL
        if self.runners is not None:
            self.find_rows(at, rows)
        at.count = self.collect(at, known, rows, least, tokens)
        at.best = 0
        while orders < ORDERS and known[orders] != NULL:
            orders += 1
        length = length_bucket(max(at.length, orders))
        acceptance = min(<int>(ACCEPTANCES * self.acceptance), ACCEPTANCES - 1)
        store = 0
        if self.store is not None:
            store = 3 * LENGTHS * store_set(
                max(at.length, orders), at.votes.length, self.store.earlier
            )
        for i in range(at.count):
            c = &at.candidates[i]
            c.token = tokens[i]
            c.used = 0
            own = self.add_cells(c, at, known, acceptance, length)
            says = NOT_KNOWN if self.store is None else self.add_store_cells(c, at)
            c.standing = 0
            if says != NOT_KNOWN:
                c.standing = <int16_t>standing_of(self.store.earlier, own, says, at.votes.length)
            if rows[0] != NULL:
                self.add_runner_cell(c, RUNNER_INPUT, RUNNER_CELLS, rows[0])
            if rows[1] != NULL:
                self.add_runner_cell(c, PAIR_INPUT, PAIR_CELLS, rows[1])
            if at.placed[RESUME] != NONE:
                agreement = 1 if c.token == at.placed[RESUME] else 2
            c.set = <int16_t>(3 * length + agreement + store)
            self.calibration.mix(c)
            if c.odds > at.candidates[at.best].odds:
                at.best = i

    cdef int add_cells(
        self, Candidate* c, const Position* at, const Slot** known, int acceptance, int length
    ) noexcept nogil:
        """Describe a candidate's situation; ``acceptance`` and ``length`` are buckets.

        Returns:
            What the text says of it: 0: nothing, 1: it followed one of the contexts, 2: it leads
            the longest one, 3: it is the match's.
        """
        cdef const Place* resume = &self.committed.places[RESUME]
        cdef const Place* near = &self.committed.places[NEAR]
        cdef int m, count, own = 0
        cdef bint newest, agrees
        for m in range(CONTEXTS):
            if known[m] != NULL:
                count = count_of(known[m], c.token, &newest)
                add_cell(c, m, context_cell(m, count, known[m].total - count, newest))
                if count:
                    own = 1
        for m in range(ORDERS - 1, -1, -1):
            if known[m] != NULL:
                if known[m].token[leader(known[m])] == c.token:
                    own = 2
                break
        if at.placed[MATCH] != NONE:
            agrees = c.token == at.placed[MATCH]
            add_cell(c, MATCH_INPUT, match_cell(length, acceptance, agrees))
        if at.placed[RESUME] != NONE:
            agrees = c.token == at.placed[RESUME]
            add_cell(c, RESUME_INPUT, resume_cell(resume.since + at.depth, resume.length, agrees))
        if at.placed[NEAR] != NONE:
            agrees = c.token == at.placed[NEAR]
            add_cell(c, NEAR_INPUT, near_cell(
                resume.since, near.length + at.depth, near.since, agrees
            ))
        add_cell(c, SESSION_INPUT, session_cell(acceptance, length))
        return 3 if c.token == at.placed[MATCH] else own

    cdef int add_store_cells(self, Candidate* c, const Position* at) noexcept nogil:
        """Describe what a store says of a candidate.

        Returns:
            0: other tokens, 1: this one too, 2: it leads by shorter matches, 3: by the longest, 4:
            by both, NOT_KNOWN: nothing.
        """
        cdef const Votes* votes = &at.votes
        cdef int i = 0, count = 0, other = 0, block = STORE_BLOCK * self.store.earlier
        while i < votes.n and votes.token[i] != c.token:
            i += 1
        if i < votes.n:
            count, other = votes.count[i], votes.other[i]
        if votes.total:
            add_cell(c, STORE_INPUT, store_cell(
                STORE_CELLS + block, votes.length, count, votes.total - count
            ))
        if votes.others:
            add_cell(c, STORE_OTHER_INPUT, store_cell(
                STORE_OTHER_CELLS + block, votes.length, other, votes.others - other
            ))
        if votes.resumed != NONE:
            block = STORE_BLOCK * self.store.resume_earlier
            add_cell(c, STORE_RESUME_INPUT, store_resume_cell(
                STORE_RESUME_CELLS + block, self.store.since + at.depth, self.store.resume.length,
                c.token == votes.resumed,
            ))
        if votes.n == 0:
            return NOT_KNOWN
        self.add_place_cells(c, votes, i)
        if i == votes.n:
            return 0
        return 1 + (i == votes.leading_other) + 2 * (i == votes.leading)

    cdef void add_place_cells(self, Candidate* c, const Votes* votes, int i) noexcept nogil:
        """Describe where in the store the ``i``-th token of ``votes`` comes next."""
        cdef bint earlier = self.store.earlier
        cdef int rank = 0
        if votes.familiar != NONE:
            if i < votes.n and votes.copied[i] > 0:
                rank = 2 if votes.copied[i] == votes.copied[votes.familiar] else 1
            add_cell(c, FAMILIAR_INPUT, familiar_cell(
                earlier, rank, votes.copied[votes.familiar], votes.length
            ))
        rank = 0
        if i < votes.n:
            rank = 2 if votes.distance[i] == votes.distance[votes.nearest] else 1
        add_cell(c, NEAREST_INPUT, nearest_cell(
            earlier, rank, votes.distance[votes.nearest], votes.length
        ))

    cdef void count_unsaid(self) noexcept nogil:
        """List what the target left unsaid, before a tree."""
        if self.runners is not None:
            self.unsaid_n = self.runners.unsaid(
                &self.committed.text, &self.committed.recent, self.unsaid
            )

    cdef void find_rows(self, const Position* at, const Row** rows) noexcept nogil:
        """The target's runners-up behind the last token, and behind the last two, where known."""
        if at.have:
            rows[0] = self.runners.row_of(at.context[ORDERS - 1])
        if at.have > 1:
            rows[1] = self.runners.pair_of(at.context[ORDERS - 2], at.context[ORDERS - 1])

    cdef void add_runner_cell(
        self, Candidate* c, int input, int first, const Row* row
    ) noexcept nogil:
        """Describe what the target said of a candidate when it last saw the tokens before."""
        cdef int rank = rank_of(row, c.token)
        cdef int age = age_bucket(self.committed.text.n - row.since)
        cdef int leading = row.probability[0] if row.n else <int>FAINT
        cdef int probability = leading if rank == RANKS else row.probability[rank]
        add_cell(c, input, runner_cell(first, rank, probability, age))

    cdef int collect(
        self, Position* at, const Slot** known, const Row** rows, float least, int32_t* tokens
    ) noexcept nogil:
        """The different tokens that may come next, in the order of preference among equals."""
        cdef int count = 0, m, i
        if at.placed[MATCH] != NONE:
            tokens[0] = at.placed[MATCH]
            count = 1
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
        for i in range(1, -1, -1):
            if rows[i] != NULL:
                count = self.collect_runners(rows[i], least, tokens, count)
        at.fallback = count == 0
        if count == 0 and self.falls_back and self.committed.unigrams.total:
            tokens[0] = self.committed.unigrams.token[leader(&self.committed.unigrams)]
            count = at.recycled = 1
        return count

    cdef int collect_runners(
        self, const Row* row, float least, int32_t* tokens, int count
    ) noexcept nogil:
        """Add the target's runners-up: the first; where branches are wanted, all but faint ones."""
        cdef int i
        for i in range(row.n):
            if i == 0 or (least <= 1 and row.probability[i] < FAINT):
                count = with_token(tokens, count, row.token[i])
        return count

    cdef int collect_store(
        self, const Votes* votes, float least, int32_t* tokens, int count
    ) noexcept nogil:
        """Add a store's tokens: the leading ones by each measure, or all with a share."""
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
        """Compare a position's candidates, in a tree recent tokens too, with what came there."""
        cdef const Recent* recent = &self.committed.recent
        cdef int i, age = 0
        cdef bint right, any = False
        for i in range(at.count):
            right = at.candidates[i].token == token
            self.calibration.learn(&at.candidates[i], right)
            any = any or right
        if at.count:
            right = at.candidates[at.best].token == token
            self.acceptance += ACCEPTANCE_RATE * (<float>right - self.acceptance)
        if any or not tree or not self.falls_back:
            return
        for i in range(recent.used):
            while i >> age:
                age += 1
            if not is_candidate(at, recent.token[i]) and not self.is_unsaid(at, recent.token[i]):
                right = recent.token[i] == token
                self.calibration.learn_share(recent_cell(recent.count[i], age), right)
        if at.depth == 0:
            self.learn_unsaid(at, token)

    cdef void learn_unsaid(self, const Position* at, int32_t token) noexcept nogil:
        """Compare what the target left unsaid with what came behind the text."""
        cdef const Unsaid* each
        cdef int i
        for i in range(self.unsaid_n):
            each = &self.unsaid[i]
            if not is_candidate(at, each.token):
                self.calibration.learn_share(
                    unsaid_cell(each.back, each.probability, each.recent), each.token == token
                )


cdef inline int with_token(int32_t* tokens, int n, int32_t token) noexcept nogil:
    """Append a token that is not among the ``n`` there; how many there are then."""
    cdef int i
    for i in range(n):
        if tokens[i] == token:
            return n
    tokens[n] = token
    return n + 1
