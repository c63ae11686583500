"""What a drafter knows about its own candidates: acceptance counts, and weights to mix them.

The mix is logistic, p = squash(sum of weight * stretch(cell)) over a candidate's cells, with one
set of weights for each situation, and learns online. No text goes into it.
"""

from libc.math cimport exp
from libc.stdint cimport int8_t, int16_t, int32_t

from ngramspec._native.cells cimport CELLS, INPUTS, SETS, STANDINGS

cdef struct Cell:       # 12 bytes
    float right         # fading count of right candidates, prior included
    float tested        # fading count of all
    float stretch       # log-odds of right / tested

cdef struct Candidate:  # 60 bytes
    int32_t token
    float odds          # log-odds of its being the next token
    int16_t set         # of weights
    int16_t standing    # of further ones
    int16_t used        # inputs in cell[]
    int16_t cell[INPUTS - 1]
    int8_t input[INPUTS - 1]


cdef inline float squash(float odds) noexcept nogil:
    """The probability of log-odds, in double like the twin's: no two libraries' expf agree."""
    return <float>(1 / (1 + exp(-odds)))


cdef inline void add_cell(Candidate* c, int input, int cell) noexcept nogil:
    """Give a candidate an input's cell."""
    c.input[c.used] = <int8_t>input
    c.cell[c.used] = <int16_t>cell
    c.used += 1


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]
    cdef float further[STANDINGS][INPUTS]   # added to those

    cdef int begin(self, int cell, float prior, float tested=*) except -1
    cdef int begin_pair(self, int cell, float other, float same) except -1
    cdef void begin_known(self, int s) noexcept
    cdef void begin_further(self, int s) noexcept
    cdef void mix(self, Candidate* c) noexcept nogil
    cdef inline float share(self, int cell) noexcept nogil:
        """P(a recent or unsaid token is next) where no candidate is."""
        return self.cells[cell].right / self.cells[cell].tested

    cdef void learn_share(self, int cell, bint right) noexcept nogil
    cdef void learn(self, const Candidate* c, bint right) noexcept nogil
