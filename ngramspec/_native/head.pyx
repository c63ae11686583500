"""The rows of a drafting head: its most probable tokens after the text and after draft tokens.

A row belongs to a path: row i follows the draft tokens ``before`` of the rows 1 to i. Positions of
a draft whose path is this one have the row's tokens as candidates. In sampled requests, tokens
that were sampled from the head's distribution are fixed, and so are those before them.

Invariant: rows 0 to ``fixed`` - 1 have a fixed token, no others. Costs: O(1) for a row.
Memory: 56 bytes for each row of the longest path. The owner prevents concurrent use.
"""

from libc.stdlib cimport free

from ngramspec._native.common cimport reserve
from ngramspec._native.top_tokens cimport bucket_of

# ln of 0.97, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.25, 0.12, 0.05 and 0.01.
cdef float[FAINT_CHANCE] BOUNDS = [
    -0.0304592, -0.1053605, -0.2231436, -0.3566749, -0.5108256, -0.6931472, -0.9162907, -1.386294,
    -2.120264, -2.995732, -4.605170
]


cdef class HeadRows:
    """The rows along the head's path of one draft."""

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
            row.chance[i] = bucket_of(BOUNDS, FAINT_CHANCE, log_probs[i])
        self.n += 1
        return 0
