"""What a drafter knows about its own candidates: acceptance counts, and weights to mix them.

The mix is logistic, p = squash(sum of weight * stretch(cell)) over a candidate's cells, with one
set of weights for each situation, and learns online. No text goes into it.
"""

from libc.math cimport exp
from libc.stdint cimport int8_t, int16_t, int32_t

from ngramspec._native.cells cimport CELLS, INPUTS, SETS, STANDINGS
from ngramspec._native.contexts cimport LEADERS
from ngramspec._native.keys cimport CONTEXTS
from ngramspec._native.places cimport PLACES
from ngramspec._native.runners cimport RANKS
from ngramspec._native.store_reader cimport STORE_LEADERS

cdef struct Cell:       # 12 bytes
    float right         # fading count of right candidates, prior included
    float tested        # fading count of all
    float stretch       # log-odds of right / tested

cdef enum:
    MOST_CANDIDATES = PLACES + CONTEXTS * LEADERS + STORE_LEADERS + 2 * RANKS + 1
    ROOM = (MOST_CANDIDATES + 3) // 4 * 4   # see lanes.pxd

cdef struct Candidates:     # of a position
    int32_t n
    int32_t inputs          # of the mix, the same for all of them
    int8_t input[INPUTS - 1]
    int32_t token[ROOM]
    float odds[ROOM]        # log-odds of its being the next token
    float p[ROOM]           # its probability, in a tree
    int16_t set[ROOM]       # of weights
    int16_t standing[ROOM]  # of further ones
    int16_t cell[INPUTS - 1][ROOM]  # by input, in their order


cdef inline float squash(float odds) noexcept nogil:
    """The probability of log-odds, in double like the twin's: no two libraries' expf agree."""
    return <float>(1 / (1 + exp(-odds)))


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]
    cdef float further[STANDINGS][INPUTS]   # added to those

    cdef int begin(self, int cell, float prior, float tested=*) except -1
    cdef int begin_pair(self, int cell, float other, float same, float tested=*) except -1
    cdef void begin_known(self, int s) noexcept
    cdef void begin_further(self, int s) noexcept
    cdef void mix(self, Candidates* all) noexcept nogil
    cdef inline float share(self, int cell) noexcept nogil:
        """P(a recent or unsaid token is next) where no candidate is."""
        return self.cells[cell].right / self.cells[cell].tested

    cdef void learn_share(self, int cell, bint right) noexcept nogil
    cdef void learn(self, const Candidates* all, int k, float p, bint right) noexcept nogil
