"""The target's latest runners-up behind each token (Token Recycling, Luo et al. 2024).

Invariant: ``places`` names every row once, and no other. Costs: writing and finding a row O(1),
amortised over growth. Memory: 48 bytes for each different token seen, and 4 bytes for each id up to
the largest of them. The owner guards against other threads.
"""

from libc.stdint cimport int8_t, int32_t
from libc.stdlib cimport free
from libc.string cimport memset

from ngramspec._native.common cimport reserve

cdef enum:
    MOST_IDS = 1 << 22      # larger ids are left out: no vocabulary has them

# ln of 0.9, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03 and 0.01.
cdef float[8] BOUNDS = [
    -0.1053605, -0.3566749, -0.6931472, -1.203973, -1.897120, -2.659260, -3.506558, -4.605170
]


cdef inline int8_t bucket_of(float log_prob) noexcept nogil:
    """0..8, of a natural logarithm of probability; NaN is the last."""
    cdef int8_t i
    for i in range(FAINT):
        if log_prob > BOUNDS[i]:
            return i
    return FAINT


cdef class RunnersUp:
    """Rows of the target's most probable tokens, by the token before them."""

    def __dealloc__(self):
        free(self.rows)
        free(self.places)

    def __len__(self):
        """Tokens that have a row."""
        return self.n

    def row(self, int token):
        """((token, bucket of its probability), ...) and the time of a row, or None: for tests."""
        cdef const Row* row
        if token < 0:
            return None
        row = self.row_of(token)
        if row == NULL:
            return None
        return [(row.token[i], row.probability[i]) for i in range(row.n)], row.since

    def sizeof(self):
        """Bytes allocated."""
        return (
            sizeof(RunnersUp) + self.row_cap * sizeof(Row) + self.place_cap * sizeof(int32_t)
        )

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        places = [self.places[i] for i in range(self.place_cap) if self.places[i]]
        assert sorted(places) == list(range(1, self.n + 1)), "places"
        for i in range(self.n):
            assert 0 <= self.rows[i].n <= RANKS, f"row {i}"
            for j in range(self.rows[i].n):
                assert self.rows[i].token[j] >= 0, f"row {i}"
                assert 0 <= self.rows[i].probability[j] < PROBABILITIES, f"row {i}"

    cdef int put(
        self, int32_t token, const int32_t* ids, const float* log_probs, int k, int32_t now
    ) noexcept nogil:
        """Write the row behind a token: 0, or -1 without memory, with the rows as they were."""
        cdef Py_ssize_t old = self.place_cap
        cdef Row* row
        cdef int i
        if token >= MOST_IDS:
            return 0
        if reserve(<void**>&self.places, &self.place_cap, token + 1, sizeof(int32_t)) < 0:
            return -1
        if self.place_cap > old:
            memset(self.places + old, 0, <size_t>(self.place_cap - old) * sizeof(int32_t))
        if self.places[token] == 0:
            if reserve(<void**>&self.rows, &self.row_cap, self.n + 1, sizeof(Row)) < 0:
                return -1
            self.n += 1
            self.places[token] = <int32_t>self.n
        row = &self.rows[self.places[token] - 1]
        row.since = now
        row.n = min(k, <int>RANKS)
        for i in range(row.n):
            row.token[i] = ids[i]
            row.probability[i] = bucket_of(log_probs[i])
        return 0
