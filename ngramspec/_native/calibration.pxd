"""What a drafter has learned about its candidates: acceptance counts, and weights to mix them.

The mix is logistic, p = squash(sum of weight * stretch(cell)) over a candidate's cells, with one
set of weights for each situation, and learns online. It contains no text.
"""

from libc.math cimport exp
from libc.stdint cimport int8_t, int16_t, int32_t

from ngramspec._native.cells cimport CELLS, INPUTS, SETS, STANDINGS
from ngramspec._native.contexts cimport LEADERS
from ngramspec._native.keys cimport CONTEXTS
from ngramspec._native.places cimport PLACES
from ngramspec._native.top_tokens cimport RANKS
from ngramspec._native.store_reader cimport STORE_LEADERS

cdef struct Cell:       # 12 bytes
    float right         # fading count of right candidates, including the prior
    float verified      # fading count of all candidates
    float stretch       # log-odds of right / verified

cdef enum:
    MOST_CANDIDATES = PLACES + CONTEXTS * LEADERS + STORE_LEADERS + 3 * RANKS + 1
    ROOM = (MOST_CANDIDATES + 3) // 4 * 4   # see lanes.pxd

cdef struct Candidates:     # the candidates of a position
    int32_t n
    int32_t inputs          # number of inputs of the mix, the same for all candidates
    int8_t input[INPUTS - 1]
    int32_t token[ROOM]
    float odds[ROOM]        # log-odds that it is the next token
    float p[ROOM]           # its probability, in a tree
    int16_t set[ROOM]       # index of its weights
    int16_t standing[ROOM]  # index of its further weights
    int16_t cell[INPUTS - 1][ROOM]  # cells by input, in the order of ``input``


cdef inline float squash(float odds) noexcept nogil:
    """The probability of log-odds, in double as in the twin, because expf differs by library."""
    return <float>(1 / (1 + exp(-odds)))


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]
    cdef float further[STANDINGS][INPUTS]   # added to ``weights``

    cdef void begin(self, int cell, float prior, float verified=*) noexcept
    cdef void begin_pair(self, int cell, float other, float same, float verified=*) noexcept
    cdef void begin_known(self, int s) noexcept
    cdef void begin_further(self, int s) noexcept
    cdef void mix(self, Candidates* all) noexcept nogil
    cdef inline float share(self, int cell) noexcept nogil:
        """P(a recent or unemitted top-k token is next) where there is no candidate."""
        return self.cells[cell].right / self.cells[cell].verified

    cdef void learn_share(self, int cell, bint right) noexcept nogil
    cdef void learn(self, const Candidates* all, int k, float p, bint right) noexcept nogil
