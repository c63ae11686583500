"""What a drafter knows about its own guesses: acceptance counts and how to weigh them. No text.

An input of the mix is a cell: how often a candidate in the cell's situation was right. The mix is
a logistic one, p = squash(sum of weight * stretch(cell)), with one set of weights per situation,
and learns online.
"""

from libc.math cimport exp
from libc.stdint cimport int8_t, int16_t, int32_t

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
    RECENT_CELLS = SESSION_CELLS + MOODS * LENGTHS
    AGES = 7                                # buckets of the other tokens used since
    CELLS = RECENT_CELLS + AGES * COUNTS
    SETS = 3 * LENGTHS

cdef struct Cell:       # 12 bytes
    float right         # decayed count of right candidates, prior included
    float tested        # decayed count of all
    float stretch       # log-odds of right / tested

cdef struct Candidate:  # 36 bytes
    int32_t token
    float odds          # log-odds of its being the next token
    int16_t set         # of weights
    int16_t used        # inputs in cell[]
    int16_t cell[INPUTS - 1]
    int8_t input[INPUTS - 1]

cdef inline float squash(float odds) noexcept nogil:
    """The probability of log-odds, in double like the twin's: no two libraries' expf agree."""
    return <float>(1 / (1 + exp(-odds)))


cdef inline int count_bucket(int n) noexcept nogil:
    """0..3 as they are, then up to 5, 9, and more: 0..6."""
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


cdef inline int recent_cell(int count, int age) noexcept nogil:
    """Of a recent token, by how often it was used and the bits of how many others were since."""
    return RECENT_CELLS + AGES * count_bucket(count) + age


cdef class Calibration:
    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]

    cdef int begin(self, int cell, float prior, float tested=*) except -1
    cdef int begin_pair(self, int cell, float other, float same) except -1
    cdef void mix(self, Candidate* c) noexcept nogil
    cdef inline float share(self, int count, int age) noexcept nogil:
        """P(a recent token is next) where no candidate is."""
        cdef const Cell* cell = &self.cells[recent_cell(count, age)]
        return cell.right / cell.tested

    cdef void learn_share(self, int count, int age, bint right) noexcept nogil
    cdef void learn(self, const Candidate* c, bint right) noexcept nogil
