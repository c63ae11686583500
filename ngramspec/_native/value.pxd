"""Drafting by value: at every position the candidate that is most likely the next token."""

from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.calibration cimport CONTEXTS, Calibration, Candidate
from ngramspec._native.contexts cimport ContextTable, Slot

cdef enum:
    MOST_CANDIDATES = CONTEXTS + 3
    PLACES = 3

cdef struct Place:      # somewhere in the text that is being read along
    int32_t at          # position of the next token, or NONE
    int32_t length      # tokens that matched before it; of a resumed copy: of the copy
    int32_t since       # resumed: tokens since the copy was left; near: distance from there

cdef struct Node:
    int32_t token
    float p             # P(it is next)
    int32_t count       # candidates
    int32_t chosen
    int32_t source
    Candidate candidates[MOST_CANDIDATES]

cdef struct Keys:       # of the contexts that end at a position; 0 where the text is too short
    uint64_t of[CONTEXTS]


cdef class ValueEngine:
    cdef readonly Calibration calibration
    cdef ContextTable table
    cdef readonly bint copies, counts, falls_back
    cdef readonly int min_match
    cdef int32_t* text
    cdef Py_ssize_t text_cap, n
    cdef Slot unigrams
    cdef Keys tail              # of the text's end
    cdef Node* nodes            # of the last proposal
    cdef Py_ssize_t node_cap
    cdef int node_n
    cdef Place match            # the longest known match
    cdef Place resume           # where the last copy would go on past a substituted token
    cdef Place near             # the best match around there
    cdef float mood             # decayed acceptance of this sequence
    cdef bint busy

    cdef int idle(self) except -1
    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void look_up(self, const Keys* keys, const Slot** known) noexcept nogil
    cdef void warm(self, const Keys* keys) noexcept nogil
    cdef int fill(self, int gamma, const float* cost) noexcept nogil
    cdef int judge(
        self, Node* node, const Slot** known, const int32_t* votes, int length, int ahead
    ) noexcept nogil
    cdef int gather(
        self, int32_t* tokens, const Slot** known, const int32_t* votes, int32_t* fallback
    ) noexcept nogil
    cdef int agreement(self, Py_ssize_t at, int most) noexcept nogil
    cdef void find_match(self, const Slot** known) noexcept nogil
    cdef void find_near(self) noexcept nogil
    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void follow(self, Py_ssize_t n) noexcept nogil
    cdef int along(self, int32_t at, Py_ssize_t n) noexcept nogil
