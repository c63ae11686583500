"""What the target last found most probable behind each token: its runners-up, kept by evidence."""

from libc.stdint cimport int8_t, int32_t

cdef enum:
    RANKS = 8           # tokens kept behind each
    PROBABILITIES = 9   # buckets of a probability
    FAINT = 8           # the last: 0.01 or less
    AGED = 3            # buckets of the tokens committed since

cdef struct Row:        # 48 bytes
    int32_t since       # committed tokens when it was written
    int32_t n           # tokens in it
    int32_t token[RANKS]        # the most probable first
    int8_t probability[RANKS]   # the bucket of each


cdef inline int rank_of(const Row* row, int32_t token) noexcept nogil:
    """The place of a token in a row, from 0 on; RANKS if it is not there."""
    cdef int i
    for i in range(row.n):
        if row.token[i] == token:
            return i
    return RANKS


cdef inline int age_bucket(Py_ssize_t age) noexcept nogil:
    """Below 32 tokens, below 128, or more: 0..2."""
    return 0 if age < 32 else 1 if age < 128 else 2


cdef class RunnersUp:
    cdef Row* rows
    cdef int32_t* places        # by token: the place of its row + 1, or 0
    cdef Py_ssize_t n, row_cap, place_cap

    cdef inline const Row* row_of(self, int32_t token) noexcept nogil:
        """The row behind a token, or NULL; valid until the next ``put``."""
        if token >= self.place_cap or self.places[token] == 0:
            return NULL
        return &self.rows[self.places[token] - 1]

    cdef int put(
        self, int32_t token, const int32_t* ids, const float* log_probs, int k, int32_t now
    ) noexcept nogil
