"""Drafting by value: at every position the candidate that is most likely the next token."""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.calibration cimport CONTEXTS, Calibration, Candidate
from ngramspec._native.contexts cimport LEADERS, ContextTable, Slot
from ngramspec._native.frontier cimport Frontier
from ngramspec._native.recent cimport Recent

cdef enum:
    PLACES = 3
    MOST_CANDIDATES = PLACES + CONTEXTS * LEADERS

cdef struct Place:      # somewhere in the text that is being read along
    int32_t at          # position of the next token, or NONE
    int32_t length      # tokens that matched before it; of a resumed copy: of the copy
    int32_t since       # resumed: tokens since the copy was left; near: distance from there

cdef struct Keys:       # of the contexts that end at a position; 0 where the text is too short
    uint64_t of[CONTEXTS]

cdef struct Position:   # the committed text and a path of nodes behind it, and what may come next
    int32_t context[4]  # the last three tokens, and room for a guess at the next
    int32_t have        # of the last tokens
    int32_t depth       # nodes in the path
    float reach         # P(the path)
    bint along, nearby  # whether the path is the match's, the near place's
    int32_t length      # of the match, while it is read along
    int32_t votes[PLACES]       # the tokens there, or NONE
    Keys guessed        # of the position behind the match's token
    bint guesses        # whether the only candidate is the most frequent token
    int32_t count
    int32_t best        # the most probable candidate
    Candidate candidates[MOST_CANDIDATES]


cdef class ValueEngine:
    cdef readonly Calibration calibration
    cdef ContextTable table
    cdef uint64_t salt          # the table's
    cdef readonly bint copies, counts, falls_back
    cdef readonly int min_match
    cdef int32_t* text
    cdef Py_ssize_t text_cap, n
    cdef Slot unigrams
    cdef Recent recent          # of the text up to recent_n, counted when a tree asks for it
    cdef Py_ssize_t recent_n
    cdef Keys tail              # of the text's end
    cdef Frontier frontier      # of the last proposal
    cdef bint tree              # whether that was asked for as a tree
    cdef Position* positions    # judged for it
    cdef Py_ssize_t position_cap
    cdef int position_n
    cdef Place match            # the longest known match
    cdef Place resume           # where the last copy would go on past a substituted token
    cdef Place near             # the best match around there
    cdef float mood             # decayed acceptance of this sequence
    cdef bint busy

    cdef int idle(self) except -1
    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void look_up(self, const Keys* keys, const Slot** known) noexcept nogil
    cdef void warm(self, const Keys* keys) noexcept nogil
    cdef cnp.npy_intp propose(self, Py_ssize_t gamma, object cost, bint tree) except -1
    cdef object drafted(self, cnp.npy_intp n)
    cdef int fill(self, const float* cost) noexcept nogil
    cdef void begin(self) noexcept nogil
    cdef bint copies_on(self, int k) noexcept nogil
    cdef void expand(self, int k) noexcept nogil
    cdef void judge(self, Position* at, const Slot** known) noexcept nogil
    cdef int gather(self, Position* at, const Slot** known, int32_t* tokens) noexcept nogil
    cdef void branch(self, const Position* at, int parent) noexcept nogil
    cdef void offer(
        self, const Position* at, int parent, int32_t token, float p, bint guess
    ) noexcept nogil
    cdef int agreement(self, Py_ssize_t at, int most) noexcept nogil
    cdef void find_match(self, const Slot** known) noexcept nogil
    cdef void find_near(self) noexcept nogil
    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void follow(self, Py_ssize_t n) noexcept nogil
    cdef int along(self, int32_t at, Py_ssize_t n) noexcept nogil
