"""The layout of the calibration's cells and weights, and the candidates of a position."""

from libc.math cimport exp
from libc.stdint cimport int16_t, int32_t, int8_t

from ngramspec._native.evidence cimport AGED, CHANCES, LATEST, PROBABILITIES, RANKS
from ngramspec._native.store_reader cimport STORE_LEADERS
from ngramspec._native.text cimport CONTEXTS, LEADERS, MATCH, NEAR, PLACES, RESUME

cdef enum:
    MATCH_INPUT = CONTEXTS + MATCH      # inputs: the contexts, then the places
    RESUME_INPUT = CONTEXTS + RESUME
    NEAR_INPUT = CONTEXTS + NEAR
    SESSION_INPUT = CONTEXTS + PLACES   # the sequence as a whole
    STORE_INPUT = SESSION_INPUT + 1     # the store's longest match
    STORE_OTHER_INPUT = STORE_INPUT + 1     # its shorter matches
    TOP_INPUT = STORE_OTHER_INPUT + 1   # the target's top-k candidates after the last token
    NEAREST_INPUT = TOP_INPUT + 1   # the store's place nearest to the last copy
    BIAS = NEAREST_INPUT + 1
    FITTED = BIAS + 1   # inputs with fitted initial weights, see starts.py
    HEAD_INPUT = FITTED         # a drafting head's probabilities
    INPUTS = HEAD_INPUT + 1
    COUNTS = 7          # buckets of a count
    LENGTHS = 12        # buckets of a match's length
    AGES = 7            # buckets of the number of other tokens used since
    RESUMED = 6         # buckets of the tokens since a copy was left
    NEAR_SINCE = 8      # the same for a near place
    NEAR_LENGTHS = 9    # buckets of a near place's match length
    DISTANCES = 6       # buckets of a near place's distance
    MATCH_CELLS = CONTEXTS * COUNTS * COUNTS * 2
    RESUME_CELLS = MATCH_CELLS + LENGTHS * 2
    NEAR_CELLS = RESUME_CELLS + RESUMED * LENGTHS * 2
    SESSION_CELLS = NEAR_CELLS + NEAR_SINCE * NEAR_LENGTHS * DISTANCES * 2
    RECENT_CELLS = SESSION_CELLS + LENGTHS
    STORE_CELLS = RECENT_CELLS + AGES * COUNTS
    STORE_OTHER_CELLS = STORE_CELLS + LENGTHS * COUNTS * COUNTS
    # The same again for the text of earlier requests.
    STORE_BLOCK = 2 * LENGTHS * COUNTS * COUNTS
    TOP_CELLS = STORE_CELLS + 2 * STORE_BLOCK
    TOP_RANKS = 5    # buckets of a rank: 0..2, 3 for more, 4 for none
    UNEMITTED_CELLS = TOP_CELLS + TOP_RANKS * PROBABILITIES * AGED
    RANKED = 3          # a candidate is at: no place, some place, the nearest place
    STORE_DISTANCES = 8  # buckets of the shortest distance
    NEAREST_CELLS = UNEMITTED_CELLS + LATEST * PROBABILITIES * 2
    HEAD_CELLS = NEAREST_CELLS + 2 * RANKED * STORE_DISTANCES * LENGTHS
    AGREEMENTS = 4      # what the text or a store says about the candidate
    CELLS = HEAD_CELLS + TOP_RANKS * CHANCES * AGREEMENTS
    KNOWN = 3           # the store's match: shorter than the text's; else up to 7 tokens; longer
    STORE_SETS = 1 + 2 * KNOWN  # no match; in a corpus; in the text of earlier requests
    # Sets of weights: by the store's match, match length, and whether the resumed copy agrees.
    HEADLESS_SETS = 3 * LENGTHS * STORE_SETS
    SETS = 2 * HEADLESS_SETS    # the same again for positions at which a head has a row
    # Sets of further weights: by what the text and the store say about the candidate.
    OWN_STANDINGS = 4   # the text: nothing; it followed; it leads the longest context; the match
    STORE_STANDINGS = 5  # the store: other tokens; also this; leads the others; the longest; both
    STANDINGS = 1 + 2 * OWN_STANDINGS * STORE_STANDINGS * LENGTHS   # 0: the store has no match
    MAX_CANDIDATES = PLACES + CONTEXTS * LEADERS + STORE_LEADERS + 2 * RANKS + 1

cdef struct Cell:       # 12 bytes
    float right         # fading count of right candidates, including the prior
    float verified      # fading count of all candidates
    float stretch       # log-odds of right / verified

cdef struct Candidates:     # the candidates of a position
    int32_t n
    int32_t inputs          # number of inputs of the mix, the same for all candidates
    int8_t input[INPUTS - 1]
    int32_t token[MAX_CANDIDATES]
    float odds[MAX_CANDIDATES]        # log-odds that it is the next token
    float p[MAX_CANDIDATES]           # its probability, in a tree
    int16_t set[MAX_CANDIDATES]       # index of its weights
    int16_t standing[MAX_CANDIDATES]  # index of its further weights
    int16_t cell[INPUTS - 1][MAX_CANDIDATES]  # cells by input, in the order of ``input``


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
