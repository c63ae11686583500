"""The tokens that models find most probable: the target's latest top-k candidates, and a head's.

There is one row of the target for each token, the latest after it (Token Recycling, Luo et al.
2024). The rows of the text's last positions are also kept, because tokens that were probable but
not emitted there may follow soon (LogitSpec, Liu et al. 2025). Memory: 48 bytes for each distinct
token seen, and 4 bytes for each id up to the largest of them.

A head's row belongs to a path: row i follows the draft tokens ``before`` of the rows 1 to i.
Positions of a draft whose path is this one have the row's tokens as candidates. In sampled
requests, tokens that were sampled from the head's distribution are fixed, and so are those before
them. Memory: 56 bytes for each row of the longest path.

Invariants: ``places`` refers to every row once, and to no other; a head's rows 0 to ``fixed`` - 1
have a fixed token, no others. Costs: writing and finding a row O(1), amortised over growth. The
owner prevents concurrent use.
"""

cdef enum:
    RANKS = 8           # tokens kept per row
    PROBABILITIES = 9   # buckets of a probability
    FAINT = 8           # the last bucket: 0.01 or less
    AGED = 3            # buckets of the number of tokens committed since
    LATEST = 4          # last positions of the text whose rows are also kept
    UNEMITTED = LATEST * RANKS
    CHANCES = 12        # buckets of a head's probability
    FAINT_CHANCE = CHANCES - 1  # the last bucket: 0.01 or less

cdef struct TopRow:        # 48 bytes
    int32_t since       # position in the text that it belongs to, or at which the draft began
    int32_t n           # number of tokens in it
    int32_t token[RANKS]        # the most probable first
    int8_t probability[RANKS]   # probability bucket of each

cdef struct Unemitted:     # a top-k token at one of the last positions that was not emitted
    int32_t token
    int32_t back        # positions since
    int32_t probability         # its bucket
    bint recent         # whether it is one of the text's recent tokens

cdef struct HeadRow:
    int32_t n           # number of tokens in it
    int32_t before      # the draft token before it; NONE: it follows the text
    int32_t token[RANKS]        # the most probable first
    int8_t chance[RANKS]        # probability bucket of each
    int32_t fixed       # the draft token at its position; NONE: the search chooses
    float share         # P(accepted) of ``fixed``


cdef inline int age_bucket(Py_ssize_t age) noexcept nogil:
    """The bucket 0..2 of an age: below 32 tokens, below 128, or more."""
    return 0 if age < 32 else 1 if age < 128 else 2

cdef enum:
    MAX_IDS = 1 << 22      # larger ids are ignored; no vocabulary has them

# ln of 0.9, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03 and 0.01.
cdef float[FAINT] BOUNDS = [
    -0.1053605, -0.3566749, -0.6931472, -1.203973, -1.897120, -2.659260, -3.506558, -4.605170
]
# ln of 0.97, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.25, 0.12, 0.05 and 0.01.
cdef float[FAINT_CHANCE] HEAD_BOUNDS = [
    -0.0304592, -0.1053605, -0.2231436, -0.3566749, -0.5108256, -0.6931472, -0.9162907, -1.386294,
    -2.120264, -2.995732, -4.605170
]


cdef inline int8_t bucket_of(const float* bounds, int8_t n, float log_prob) noexcept nogil:
    """The bucket 0..n of a natural logarithm of probability; n for NaN.

    ``bounds`` are the exclusive lower bounds of the buckets but the last, descending.
    """
    cdef int8_t i
    for i in range(n):
        if log_prob > bounds[i]:
            return i
    return n


cdef class TopTokens:
    """Rows of the target's most probable tokens, by the preceding tokens."""

    cdef TopRow* rows
    cdef int32_t* places        # indexed by token: the place of its row + 1, or 0
    cdef TopRow latest[LATEST]     # indexed by the position in the text, modulo LATEST
    cdef Py_ssize_t n, row_cap, place_cap

    def __dealloc__(self):
        free(self.rows)
        free(self.places)

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(TopTokens) + self.row_cap * sizeof(TopRow) + self.place_cap * sizeof(int32_t)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        places = [self.places[i] for i in range(self.place_cap) if self.places[i]]
        assert sorted(places) == list(range(1, self.n + 1)), "places"
        for i in range(self.n):
            assert 0 <= self.rows[i].n <= RANKS, f"row {i}"
            for j in range(self.rows[i].n):
                assert self.rows[i].token[j] >= 0, f"row {i}"
                assert 0 <= self.rows[i].probability[j] < PROBABILITIES, f"row {i}"
        for i in range(LATEST):
            assert self.latest[i].n == 0 or self.latest[i].since % LATEST == i, f"latest {i}"

    cdef inline const TopRow* row_of(self, int32_t last) noexcept nogil:
        """The row after a token, or NULL; valid until the next ``put``."""
        if last >= self.place_cap or self.places[last] == 0:
            return NULL
        return &self.rows[self.places[last] - 1]

    cdef int put(
        self, int32_t last, const int32_t* ids, const float* log_probs, int k, int32_t since
    ) noexcept nogil:
        """Write the row after ``last``: 0, or -1 without memory and with the rows unchanged."""
        cdef Py_ssize_t old = self.place_cap
        cdef TopRow* row
        cdef int i
        if last >= MAX_IDS:
            return 0
        if reserve(<void**>&self.places, &self.place_cap, last + 1, sizeof(int32_t)) < 0:
            return -1
        if self.place_cap > old:
            memset(self.places + old, 0, <size_t>(self.place_cap - old) * sizeof(int32_t))
        if self.places[last] == 0:
            if reserve(<void**>&self.rows, &self.row_cap, self.n + 1, sizeof(TopRow)) < 0:
                return -1
            self.n += 1
            self.places[last] = <int32_t>self.n
        row = &self.rows[self.places[last] - 1]
        row.since = since
        row.n = min(k, <int>RANKS)
        for i in range(row.n):
            row.token[i] = ids[i]
            row.probability[i] = bucket_of(BOUNDS, FAINT, log_probs[i])
        return 0

    cdef void put_latest(self, int32_t last) noexcept nogil:
        """Record that the row just written after ``last`` belongs to the text itself."""
        cdef const TopRow* row = self.row_of(last)
        if row != NULL:
            self.latest[row.since % LATEST] = row[0]

    cdef int unemitted(
        self, const Text* text, const Recent* recent, Unemitted* into
    ) noexcept nogil:
        """The top-k tokens of the text's last positions that were not emitted there.

        Each token comes once; the latest position's come first, by rank. ``recent`` must be up to
        date. ``into`` has room for UNEMITTED tokens; their number is returned.
        """
        cdef const TopRow* row
        cdef Py_ssize_t at
        cdef int back, i, n = 0
        for back in range(<int>min(<Py_ssize_t>LATEST, text.n)):
            at = text.n - 1 - back
            row = &self.latest[at % LATEST]
            if row.n == 0 or row.since != at:
                continue
            for i in range(row.n):
                if row.token[i] == text.tokens[at] or is_among(into, n, row.token[i]):
                    continue
                into[n].token = row.token[i]
                into[n].back = back
                into[n].probability = row.probability[i]
                into[n].recent = index_of(recent.token, recent.used, row.token[i]) != NONE
                n += 1
        return n


cdef inline bint is_among(const Unemitted* unemitted, int n, int32_t token) noexcept nogil:
    cdef int i
    for i in range(n):
        if unemitted[i].token == token:
            return True
    return False


cdef class HeadRows:
    """The rows along the head's path of one draft."""

    cdef HeadRow* rows          # indexed by depth
    cdef Py_ssize_t cap
    cdef int n                  # number of rows
    cdef int fixed              # number of leading rows whose draft token is fixed

    def __dealloc__(self):
        free(self.rows)

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(HeadRows) + self.cap * sizeof(HeadRow)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        assert 0 <= self.fixed <= self.n <= self.cap, "numbers of rows"
        for i in range(self.n):
            assert (self.rows[i].fixed != NONE) == (i < self.fixed), f"row {i}"
            assert (self.rows[i].before == NONE) == (i == 0), f"row {i}"

    cdef int add(
        self, int32_t before, const int32_t* ids, const float* log_probs, int k
    ) noexcept nogil:
        """Append a row: 0, or -1 without memory."""
        cdef HeadRow* row
        cdef int i
        if reserve(<void**>&self.rows, &self.cap, self.n + 1, sizeof(HeadRow)) < 0:
            return -1
        row = &self.rows[self.n]
        row.n, row.before, row.fixed, row.share = min(k, <int>RANKS), before, NONE, 0
        for i in range(row.n):
            row.token[i] = ids[i]
            row.chance[i] = bucket_of(HEAD_BOUNDS, FAINT_CHANCE, log_probs[i])
        self.n += 1
        return 0

    cdef inline const HeadRow* at(self, bint follows, int depth) noexcept nogil:
        """The row of a position at a depth whose path is the head's; else NULL."""
        return &self.rows[depth] if follows and depth < self.n else NULL
