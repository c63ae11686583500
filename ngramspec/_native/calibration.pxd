"""What a drafter knows about its own guesses: acceptance counts and how to weigh them. No text.

An input of the mix is a cell: how often a candidate in the cell's situation was right. The mix is
a logistic one, p = squash(sum of weight * stretch(cell)), with one set of weights per situation,
and learns online.
"""

from libc.stdint cimport int32_t

cdef enum:
    CONTEXTS = 4                            # of 1, 2 and 3 tokens, and the one that skips a token
    MATCH = CONTEXTS                        # inputs: the contexts, then the places read along
    RESUME = MATCH + 1
    NEAR = RESUME + 1
    SESSION = NEAR + 1
    BIAS = SESSION + 1
    INPUTS = BIAS + 1
    LENGTHS = 12                            # buckets of a match's length
    COUNTS = 7                              # buckets of a count
    MOODS = 5
    MATCH_CELLS = CONTEXTS * COUNTS * COUNTS * 2
    RESUME_CELLS = MATCH_CELLS + LENGTHS * MOODS * 2
    NEAR_CELLS = RESUME_CELLS + 6 * LENGTHS * 2
    SESSION_CELLS = NEAR_CELLS + 8 * 9 * 6 * 2
    CELLS = SESSION_CELLS + MOODS * LENGTHS
    SETS = 3 * LENGTHS

cdef struct Cell:       # 12 bytes
    float right         # decayed count of right candidates, prior included
    float tested        # decayed count of all
    float stretch       # log-odds of right / tested

cdef struct Candidate:  # 80 bytes
    int32_t token
    int32_t set         # of weights
    float odds          # log-odds of its being the next token
    int32_t used        # inputs in cell[]
    int32_t cell[INPUTS - 1]
    int32_t input[INPUTS - 1]

cdef float squash(float odds) noexcept nogil


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]

    cdef int begin(self, int cell, float prior) except -1
    cdef int begin_pair(self, int cell, float other, float same) except -1
    cdef void mix(self, Candidate* c) noexcept nogil
    cdef void learn(self, const Candidate* c, bint right) noexcept nogil
