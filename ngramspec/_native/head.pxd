"""The tokens that a drafting head proposes along one path of the next draft."""

from libc.stdint cimport int8_t, int32_t

from ngramspec._native.common cimport NONE
from ngramspec._native.top_tokens cimport RANKS

cdef enum:
    CHANCES = 12        # buckets of a head's probability
    FAINT_CHANCE = CHANCES - 1  # the last bucket: 0.01 or less
    HEAD_DEPTHS = 6     # buckets of the number of tokens between the text and the position

cdef struct HeadRow:
    int32_t n           # number of tokens in it
    int32_t before      # the draft token before it; NONE: it follows the text
    int32_t token[RANKS]        # the most probable first
    int8_t chance[RANKS]        # probability bucket of each
    int32_t fixed       # the draft token at its position; NONE: the search chooses
    float share         # P(accepted) of ``fixed``


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
