"""What a drafter knows about its own guesses: acceptance counts and how to weigh them. No text.

An input of the mix is a cell: how often a candidate in the cell's situation was right. The mix is
a logistic one, p = squash(sum of weight * stretch(cell)), with one set of weights per situation,
and learns online.
"""

from libc.stdint cimport int32_t

cdef enum:
    INPUTS = 7          # three contexts, copy, resume, session, bias
    CELLS = 147 + 120 + 144 + 60
    SETS = 36

cdef struct Cell:       # 12 bytes
    float right         # decayed count of right candidates, prior included
    float tested        # decayed count of all
    float stretch       # log-odds of right / tested

cdef struct Candidate:  # 64 bytes
    int32_t token
    int32_t set         # of weights
    float p             # P(it is the next token)
    int32_t used        # inputs in cell[]
    int32_t cell[INPUTS - 1]
    int32_t input[INPUTS - 1]


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]

    cdef int _set(self, int i, float prior) except -1
    cdef void mix(self, Candidate* c) noexcept nogil
    cdef void learn(self, const Candidate* c, bint right) noexcept nogil
