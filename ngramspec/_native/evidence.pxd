"""The most probable tokens of the target and of a drafting head."""

from libc.stdint cimport int32_t, int8_t

from ngramspec._native.text cimport Recent, Text

cdef enum:
    RANKS = 8           # tokens kept per row
    PROBABILITIES = 9   # buckets of a probability
    FAINT = 8           # the last bucket: 0.01 or less
    AGED = 3            # buckets of the number of tokens committed since
    LATEST = 4          # last positions of the text whose rows are also kept
    UNEMITTED = LATEST * RANKS
    CHANCES = 12        # buckets of a head's probability
    FAINT_CHANCE = CHANCES - 1  # the last bucket: 0.01 or less

cdef struct Row:        # 48 bytes
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


cdef inline int rank_of(const int32_t* row, int n, int32_t token) noexcept nogil:
    """The rank of a token among the ``n`` tokens of a row, from 0; RANKS if it is not there."""
    cdef int i
    for i in range(n):
        if row[i] == token:
            return i
    return RANKS


cdef inline int age_bucket(Py_ssize_t age) noexcept nogil:
    """The bucket 0..2 of an age: below 32 tokens, below 128, or more."""
    return 0 if age < 32 else 1 if age < 128 else 2


cdef class TopTokens:
    cdef Row* rows
    cdef int32_t* places        # indexed by token: the place of its row + 1, or 0
    cdef Row latest[LATEST]     # indexed by the position in the text, modulo LATEST
    cdef Py_ssize_t n, row_cap, place_cap

    cdef inline const Row* row_of(self, int32_t last) noexcept nogil:
        """The row after a token, or NULL; valid until the next ``put``."""
        if last >= self.place_cap or self.places[last] == 0:
            return NULL
        return &self.rows[self.places[last] - 1]

    cdef int put(
        self, int32_t last, const int32_t* ids, const float* log_probs, int k, int32_t since
    ) noexcept nogil
    cdef void put_latest(self, int32_t last) noexcept nogil
    cdef int unemitted(self, const Text* text, const Recent* recent, Unemitted* into) noexcept nogil


cdef class HeadRows:
    cdef HeadRow* rows          # indexed by depth
    cdef Py_ssize_t cap
    cdef int n                  # number of rows
    cdef int fixed              # number of leading rows whose draft token is fixed

    cdef int add(
        self, int32_t before, const int32_t* ids, const float* log_probs, int k
    ) noexcept nogil
    cdef inline const HeadRow* at(self, bint follows, int depth) noexcept nogil:
        """The row of a position at a depth whose path is the head's; else NULL."""
        return &self.rows[depth] if follows and depth < self.n else NULL
