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

cdef struct Inputs:     # of the mix, the same for all candidates of a position
    int32_t n
    int8_t of[INPUTS - 1]

cdef struct Candidate:  # 48 bytes
    int32_t token
    float odds          # log-odds of its being the next token
    float p             # its probability, where ``squash`` was asked
    int16_t set         # of weights
    int16_t standing    # of further ones
    int16_t cell[INPUTS - 1]    # of each input, in their order


cdef inline float squash(float odds) noexcept nogil:
    """The probability of log-odds, in double like the twin's: no two libraries' expf agree."""
    return <float>(1 / (1 + exp(-odds)))


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]
    cdef float further[STANDINGS][INPUTS]   # added to those

    cdef int begin(self, int cell, float prior, float tested=*) except -1
    cdef int begin_pair(self, int cell, float other, float same) except -1
    cdef void mix(self, Candidate* candidates, int count, const Inputs* inputs) noexcept nogil
    cdef inline float share(self, int cell) noexcept nogil:
        """P(a recent or unsaid token is next) where no candidate is."""
        return self.cells[cell].right / self.cells[cell].tested

    cdef void learn_share(self, int cell, bint right) noexcept nogil
    cdef void learn(
        self, const Candidate* c, float p, const Inputs* inputs, bint right
    ) noexcept nogil
