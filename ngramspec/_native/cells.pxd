"""The layout of the calibration's cells, one for each situation that a candidate can be in.

An input of the mix is what one piece of evidence says about a candidate: a context, a place, or the
sequence as a whole. Each input has a cell for each bucket of its counts and lengths. A new source
of candidates needs separate inputs and cells here, and priors in calibration.pyx.
"""

from ngramspec._native.head cimport CHANCES, HEAD_DEPTHS
from ngramspec._native.keys cimport CONTEXTS
from ngramspec._native.places cimport MATCH, NEAR, PLACES, RESUME
from ngramspec._native.top_tokens cimport AGED, LATEST, PROBABILITIES, RANKS

cdef extern from *:
    """
    static const signed char ngs_of_count[11] = {0, 1, 2, 3, 4, 4, 5, 5, 5, 5, 6};
    static const signed char ngs_of_length[42] = {
        0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9,
        10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 11};
    """
    const signed char* OF_COUNT "ngs_of_count"
    const signed char* OF_LENGTH "ngs_of_length"

cdef enum:
    MATCH_INPUT = CONTEXTS + MATCH      # inputs: the contexts, then the places
    RESUME_INPUT = CONTEXTS + RESUME
    NEAR_INPUT = CONTEXTS + NEAR
    SESSION_INPUT = CONTEXTS + PLACES   # the sequence as a whole
    STORE_INPUT = SESSION_INPUT + 1     # the store's longest match
    STORE_OTHER_INPUT = STORE_INPUT + 1     # its shorter matches
    STORE_RESUME_INPUT = STORE_OTHER_INPUT + 1      # where its last copy would continue
    TOP_INPUT = STORE_RESUME_INPUT + 1   # the target's top-k candidates after the last token
    PAIR_INPUT = TOP_INPUT + 1       # and after the last two
    FAMILIAR_INPUT = PAIR_INPUT + 1     # the store's regions that were right recently
    NEAREST_INPUT = FAMILIAR_INPUT + 1  # the place nearest to the last copy
    BIAS = NEAREST_INPUT + 1
    FITTED = BIAS + 1   # inputs with fitted initial weights, see starts.py
    HEAD_INPUT = FITTED         # a drafting head's probabilities
    HEAD_DEPTH_INPUT = HEAD_INPUT + 1   # and how far from the text they are
    INPUTS = HEAD_DEPTH_INPUT + 1
    COUNTS = 7          # buckets of a count
    LENGTHS = 12        # buckets of a match's length
    ACCEPTANCES = 5     # buckets of the sequence's acceptance rate
    AGES = 7            # buckets of the number of other tokens used since
    RESUMED = 6         # buckets of the tokens since a copy was left
    NEAR_SINCE = 8      # the same for a near place
    NEAR_LENGTHS = 9    # buckets of a near place's match length
    DISTANCES = 6       # buckets of a near place's distance
    MATCH_CELLS = CONTEXTS * COUNTS * COUNTS * 2
    RESUME_CELLS = MATCH_CELLS + LENGTHS * ACCEPTANCES * 2
    NEAR_CELLS = RESUME_CELLS + RESUMED * LENGTHS * 2
    SESSION_CELLS = NEAR_CELLS + NEAR_SINCE * NEAR_LENGTHS * DISTANCES * 2
    RECENT_CELLS = SESSION_CELLS + ACCEPTANCES * LENGTHS
    STORE_CELLS = RECENT_CELLS + AGES * COUNTS
    STORE_OTHER_CELLS = STORE_CELLS + LENGTHS * COUNTS * COUNTS
    STORE_RESUME_CELLS = STORE_OTHER_CELLS + LENGTHS * COUNTS * COUNTS
    # The same again for the text of earlier requests.
    STORE_BLOCK = 2 * LENGTHS * COUNTS * COUNTS + RESUMED * LENGTHS * 2
    TOP_CELLS = STORE_CELLS + 2 * STORE_BLOCK
    TOP_RANKS = 5    # buckets of a rank: 0..2, 3 for more, 4 for none
    PAIR_CELLS = TOP_CELLS + TOP_RANKS * PROBABILITIES * AGED
    UNEMITTED_CELLS = PAIR_CELLS + TOP_RANKS * PROBABILITIES * AGED
    RANKED = 3          # by such a measure, a candidate is at: no place, some place, the best place
    COPIED_COUNTS = 6   # buckets of the count of right tokens in the best region
    STORE_DISTANCES = 8  # buckets of the shortest distance
    FAMILIAR_CELLS = UNEMITTED_CELLS + LATEST * PROBABILITIES * 2
    NEAREST_CELLS = FAMILIAR_CELLS + 2 * RANKED * COPIED_COUNTS * LENGTHS
    HEAD_CELLS = NEAREST_CELLS + 2 * RANKED * STORE_DISTANCES * LENGTHS
    HEAD_RANKS = 3      # the head's first token, another one of it, none
    AGREEMENTS = 4      # what the text or a store says about the candidate
    HEAD_DEPTH_CELLS = HEAD_CELLS + TOP_RANKS * CHANCES * AGREEMENTS
    CELLS = HEAD_DEPTH_CELLS + HEAD_RANKS * CHANCES * HEAD_DEPTHS
    KNOWN = 3           # the store's match: shorter than the text's; else up to 7 tokens; longer
    STORE_SETS = 1 + 2 * KNOWN  # no match; in a corpus; in the text of earlier requests
    # Sets of weights: by the store's match, match length, and whether the resumed copy agrees.
    HEADLESS_SETS = 3 * LENGTHS * STORE_SETS
    SETS = 2 * HEADLESS_SETS    # the same again for positions at which a head has a row
    # Sets of further weights: by what the text and the store say about the candidate.
    OWN_STANDINGS = 4   # the text: nothing; it followed; it leads the longest context; the match
    STORE_STANDINGS = 5  # the store: other tokens; also this; leads the others; the longest; both
    STANDINGS = 1 + 2 * OWN_STANDINGS * STORE_STANDINGS * LENGTHS   # 0: the store has no match


cdef inline int count_bucket(int n) noexcept nogil:
    """The bucket 0..6 of a count: 0..3 unchanged, then up to 5, up to 9, and more."""
    return OF_COUNT[min(n, 10)]


cdef inline int length_bucket(int n) noexcept nogil:
    """The bucket 0..11 of a length: 0..6 unchanged, then up to 8, 12, 20, 40, and more."""
    return OF_LENGTH[min(n, 41)]


cdef inline int context_cell(int m, int count, int others, bint newest) noexcept nogil:
    """By the counts of the candidate and of others after context ``m``, and which was latest."""
    return newest + 2 * ((m * COUNTS + count_bucket(count)) * COUNTS + count_bucket(others))


cdef inline int match_cell(int length, int acceptance) noexcept nogil:
    """By the match's length and the sequence's acceptance (buckets)."""
    return MATCH_CELLS + 2 * (ACCEPTANCES * length + acceptance)


cdef inline int resume_cell(int since, int length) noexcept nogil:
    """By the tokens since the copy was left, and how long the copy was."""
    return RESUME_CELLS + 2 * (LENGTHS * min(since, RESUMED - 1) + length_bucket(length))


cdef inline int near_cell(int since, int length, int distance) noexcept nogil:
    """By the tokens since the copy was left, the near match's length and its distance."""
    cdef int where = min(since, NEAR_SINCE - 1) * NEAR_LENGTHS + min(length, NEAR_LENGTHS - 1)
    cdef int far = min(length_bucket(distance) // 2, DISTANCES - 1)
    return NEAR_CELLS + 2 * (where * DISTANCES + far)


cdef inline int session_cell(int acceptance, int length) noexcept nogil:
    """By the sequence's acceptance and the match's length (buckets)."""
    return SESSION_CELLS + LENGTHS * acceptance + length


cdef inline int recent_cell(int count, int age) noexcept nogil:
    """A recent token's cell: by its count, and the bit length of the number of others since."""
    return RECENT_CELLS + AGES * count_bucket(count) + age


cdef inline int store_cell(int first, int length, int count, int others) noexcept nogil:
    """By the match's length in the store, and the counts of the candidate and of others."""
    cdef int counts = count_bucket(count) * COUNTS + count_bucket(others)
    return first + length_bucket(length) * COUNTS * COUNTS + counts


cdef inline int store_resume_cell(int first, int since, int length) noexcept nogil:
    """By the tokens since the store's copy was left, and how long it was."""
    return first + 2 * (LENGTHS * min(since, RESUMED - 1) + length_bucket(length))


cdef inline int store_set(int own, int length, bint earlier) noexcept nogil:
    """Index of the weights: by the lengths of the text's own match and of the store's."""
    cdef int known = 1 if length < own else 2 if length < 8 else 3
    return 0 if length == 0 else KNOWN * earlier + known


cdef inline int top_cell(int first, int rank, int probability, int age) noexcept nogil:
    """By rank, bucket of probability (the top one's if there is no rank), and bucket of age."""
    cdef int place = TOP_RANKS - 1 if rank == RANKS else min(rank, TOP_RANKS - 2)
    return first + (place * PROBABILITIES + probability) * AGED + age


cdef inline int unemitted_cell(int back, int probability, bint recent) noexcept nogil:
    """An unemitted top-k token's cell: by positions since, probability, and recency."""
    return UNEMITTED_CELLS + (back * PROBABILITIES + probability) * 2 + recent


cdef inline int copied_bucket(float n) noexcept nogil:
    """The bucket 0..5 of a count of right tokens: 0, then below 0.5, 2, 5, 12, and more."""
    return 0 if n <= 0 else 1 if n < 0.5 else 2 if n < 2 else 3 if n < 5 else 4 if n < 12 else 5


cdef inline int distance_bucket(int n) noexcept nogil:
    """The bucket 0..7 of a distance: 0, then up to 4, 32, 256, 1024, 4096, more; 7: not known."""
    if n <= 32:
        return 0 if n == 0 else 1 if n <= 4 else 2
    return 3 if n <= 256 else 4 if n <= 1024 else 5 if n <= 4096 else 6 if n < 0x7fffffff else 7


cdef inline int familiar_cell(bint earlier, int rank, float copied, int length) noexcept nogil:
    """By the count of right tokens in the best region, and the match's length in the store."""
    return FAMILIAR_CELLS + length_bucket(length) + LENGTHS * (
        copied_bucket(copied) + COPIED_COUNTS * (rank + RANKED * earlier)
    )


cdef inline int nearest_cell(bint earlier, int rank, int distance, int length) noexcept nogil:
    """By the shortest distance, and the match's length in the store."""
    return NEAREST_CELLS + length_bucket(length) + LENGTHS * (
        distance_bucket(distance) + STORE_DISTANCES * (rank + RANKED * earlier)
    )


cdef inline int head_cell(int rank, int chance, int agreement) noexcept nogil:
    """By the head's rank and probability of the candidate, and by what else suggests it."""
    cdef int place = TOP_RANKS - 1 if rank == RANKS else min(rank, TOP_RANKS - 2)
    return HEAD_CELLS + agreement + AGREEMENTS * (chance + CHANCES * place)


cdef inline int head_depth_cell(int rank, int chance, int depth) noexcept nogil:
    """By the head's rank and probability of the candidate, and the draft tokens before."""
    cdef int place = 0 if rank == 0 else 2 if rank == RANKS else 1
    return HEAD_DEPTH_CELLS + min(depth, HEAD_DEPTHS - 1) + HEAD_DEPTHS * (
        chance + CHANCES * place
    )


cdef inline int standing_of(bint earlier, int own, int store, int length) noexcept nogil:
    """Index of the further weights: by what text and store say, and the store's match length."""
    return 1 + length_bucket(length) + LENGTHS * (
        store + STORE_STANDINGS * (own + OWN_STANDINGS * earlier)
    )
