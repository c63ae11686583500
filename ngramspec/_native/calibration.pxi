"""What a drafter has learned about its candidates: acceptance counts, and weights to mix them.

The mix is logistic, p = squash(sum of weight * stretch(cell)) over a candidate's cells, as in the
PAQ compressors (Mahoney 2005): each input is the log-odds of a counted frequency, and the weights,
one set for each situation, follow the gradient of the coding cost. Counts are halved when full, so
recent text has the most weight.

Invariant: 0 <= right <= verified in every cell, and ``stretch`` is their log-odds, within
+-7.6. Costs: mixing and learning O(inputs) for a candidate. Memory: 12 bytes per cell, 120 kB
in total, independent of the text. A drafter has one for each kind of prompts; its methods run under
the GIL, so sessions in several threads may share it.

It stores no tokens. It stores how texts repeat themselves: how often copies, counts and recent
tokens were right. Sequences that share it can infer that much about each other; see ValueDrafter.
"""

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
    FITTED = BIAS + 1   # inputs with fitted initial weights, see STARTS
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

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* ln(x) for normal x > 0: the exponent's part, and a polynomial of the mantissa. Its error is
       below 1e-6. Zero gives -88, beyond every bound. The twin computes the same. */
    static inline float ngs_log(float x) {
        uint32_t bits;
        float m, e;
        memcpy(&bits, &x, 4);
        e = (float)((int32_t)(bits >> 23) - 127);
        bits = (bits & 0x7fffffu) | 0x3f800000u;
        memcpy(&m, &bits, 4);
        m -= 1.0f;
        return e * 0.69314718f + m * (0.99998116f + m * (-0.49947178f + m * (0.32824221f
            + m * (-0.22589801f + m * (0.13467453f + m * (-0.05514520f + m * 0.01076451f))))));
    }
    #define NGS_STRONGEST 7.6f  /* log-odds a cell can reach: a probability of 0.9995 */
    /* Log-odds of right / verified. */
    static inline float ngs_stretch(float right, float verified) {
        float x = ngs_log(right) - ngs_log(verified - right);
        x = x > -NGS_STRONGEST ? x : -NGS_STRONGEST;
        return x < NGS_STRONGEST ? x : NGS_STRONGEST;
    }
    /* The same of n at once: without branches, so that they fit vectors. */
    static inline void ngs_stretch_all(const float* right, const float* all, float* to, int n) {
        for (int i = 0; i < n; i++) to[i] = ngs_stretch(right[i], all[i]);
    }
    """
    float stretch "ngs_stretch" (float right, float verified) noexcept nogil
    void stretch_all "ngs_stretch_all" (
        const float* right, const float* verified, float* into, int n
    ) noexcept nogil

cdef enum:
    HALVE_AT = 600
    HALVE_SHARE_AT = 10000

cdef float RATE = 0.02      # learning rate of the weights
cdef float RATE_STORE = 0.005    # where a store has candidates: the initial weights are fitted
cdef float RATE_FURTHER = 0.00125  # of the further weights used there
cdef float CONSTANT = 0.3   # the bias's input
cdef float PRIOR = 4.0      # candidates that a cell's prior counts as
cdef float PRIOR_STORE = 64.0    # the same for a store's cells
cdef float PRIOR_HEAD = 16.0    # the same for a head's cells
cdef float PRIOR_SHARE = 100.0  # tokens that the prior of a recent token's cell counts as
# Initial values: rounded, measured on other texts (library sources in two releases, answers of a
# small model). They matter for the first few hundred tokens.
cdef float[INPUTS] WEIGHTS = [
    0.3, 0.3, 0.3, 0.05, 0.3, 0.05, 0.3, 0.1, 0.4, 0.2, 0.25, 0.1, 0.4, 0.45
]
cdef float BESIDE_HEAD = 0.4    # factor on the other weights where a head has a row
cdef int[7] COUNT_OF = [0, 1, 2, 3, 5, 9, 15]                         # count of a bucket
cdef int[12] LENGTH_OF = [2, 2, 2, 3, 4, 5, 6, 8, 12, 20, 40, 60]
cdef float GUESS = 0.05     # P(right) of the most frequent token where nothing else is known
# Odds of the only continuation of a store's match, seen once, by the match's length.
cdef float[12] STORE_SURE = [0.25, 0.25, 0.35, 0.55, 0.7, 1, 1.3, 2, 3.3, 6, 15, 40]
# Odds of the token at the nearest place by the match's length.
cdef float[12] PLACE_SURE = [0.2, 0.25, 0.6, 1, 1.4, 1.7, 2.3, 2.8, 4, 6, 12, 40]
# Initial weights of candidates where a store has a match, in steps of 0.05; a column is an input of
# FITTED. The first start as the sum of a row of each of the first three tables, the further weights
# as that of the last two. Fitted to completions inside 40 Python packages, and rounded.
STARTS = {
    # By: the store's match is shorter than the text's; else up to 7 tokens; longer.
    "BY_KNOWN": (
        (1, 1, 2, 1, 2, 2, 0, -3, 1, 2, 5, 1, 7),
        (1, 2, 0, 1, 1, 1, 2, 3, 3, 0, 5, 2, 36),
        (1, 1, 1, 0, 1, 1, -1, -3, 5, 0, 5, 1, -9),
    ),
    # By: the length bucket of the text's longest match or context.
    "BY_LENGTH": (
        (0, 0, 0, 2, 0, -1, 0, 3, 6, 3, 0, 2, 13),
        (4, 0, 0, 1, 0, 0, -2, 3, 3, 4, 0, 0, 13),
        (2, 0, 0, 1, -2, -1, -1, 1, 0, 2, 0, 0, 2),
        (1, 0, 0, 1, -3, -1, 1, 2, 1, 1, 0, 0, 11),
        (0, 2, -1, 0, -1, -1, 0, 3, -1, 0, 0, 1, -1),
        (0, 1, 0, 1, -1, 1, 2, -3, -1, 1, 0, 0, 2),
        (0, 1, 0, -2, 1, 2, 0, -1, 1, -2, 0, -1, -5),
        (2, 0, 1, -1, 0, 0, 2, -2, -2, -2, 0, 2, -6),
        (0, -1, 5, -2, -1, 1, 0, -5, -2, -2, 0, 1, 3),
        (0, 0, -3, -2, 4, 3, 0, -1, 2, -5, 0, -4, 1),
        (-2, 2, 2, -1, 4, -1, -2, -2, 0, 0, 0, 6, 1),
        (-5, 0, 0, 4, 3, 2, 1, -2, 2, 1, 0, -2, 0),
    ),
    # By: there is no resumed copy; it suggests the candidate; it suggests another token.
    "BY_AGREEMENT": (
        (1, 1, 1, 0, 2, 0, -2, 0, 4, 0, 0, 2, 1),
        (0, 2, 0, 1, 1, 4, 2, -3, 2, 1, 0, 1, 42),
        (0, 2, 2, 0, 2, 0, 1, 0, 3, 1, 0, 1, -9),
    ),
    # By what the text says about the candidate: nothing; it followed before; it leads the longest
    # context; it is the match's token. For each of these, what the store says: other tokens; also
    # this one; it leads among shorter matches; among the longest; among both.
    "BY_STANDING": (
        (-2, 4, 1, -2, -3, 7, -1, 8, -6, -2, 0, 4, -17),
        (-1, 2, -1, -1, -2, 3, 0, 3, 5, -2, 0, 1, -2),
        (-2, 1, -1, -1, 0, 2, 2, -2, 3, 3, 0, 1, 2),
        (-2, 1, -1, -1, -1, 1, 0, 0, 3, 0, 0, -1, -18),
        (-1, 2, 1, -2, -2, 2, 1, -2, 2, 3, 0, 1, -8),
        (3, 2, 1, 2, -2, 0, -2, 2, -3, -1, 0, 2, 8),
        (-2, -1, 1, 2, 2, 0, 1, 1, -2, -1, 0, 1, 8),
        (-2, -2, -1, 3, 1, 1, 0, -3, 0, 1, 0, -3, 3),
        (-2, -1, 1, 1, 1, 1, 0, 0, 0, -4, 0, 0, 0),
        (-1, -1, 1, 1, 0, 1, 0, -6, 0, 1, 0, 2, 4),
        (3, 1, 3, 0, 0, -2, 0, 3, -3, -1, 0, -2, 16),
        (1, 1, -1, 0, 1, -1, 0, 2, -1, -1, 0, 0, 15),
        (0, 0, -1, 0, 1, 1, 2, -6, 0, 2, 0, 0, 2),
        (0, 2, -5, 0, 4, -1, 1, 3, -1, -5, 0, 0, 6),
        (2, 2, 1, -1, 5, 1, 1, -8, 3, 4, 0, 1, 14),
        (1, 1, 0, 2, 1, -4, -1, 3, -4, -1, 0, -2, 2),
        (2, -2, 3, 0, -1, -4, -3, 4, 0, -1, 0, -1, -11),
        (3, -1, 0, 0, 2, -1, -1, 3, 3, -1, 0, -2, -3),
        (1, -4, 1, 1, 0, -1, -1, -2, 2, 1, 0, 0, 5),
        (1, -2, 2, -1, -1, -2, 1, -6, 7, 6, 0, 2, 7),
    ),
    # By the length bucket of the store's match.
    "BY_STORE_LENGTH": (
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (4, 5, -3, -1, 1, 0, 1, 0, 0, 0, 0, 2, 0),
        (2, 3, 2, -1, 1, 1, 0, -2, 3, -3, 0, 2, 22),
        (1, 1, 2, -1, 1, 0, 0, -4, 2, -2, 0, 0, 10),
        (0, 1, 2, -1, 0, 1, -1, -3, 3, 0, 0, -1, 7),
        (0, 1, 1, -1, 1, 0, -1, -3, 2, 1, 0, 0, 8),
        (-1, 0, 2, -1, 1, 0, -2, -4, 2, 1, 0, 0, 3),
        (0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, -1, 5),
        (-1, 0, 1, 1, 1, 0, 2, 2, -2, 0, 0, 2, 15),
        (-1, -3, 1, 2, 1, 1, 3, 3, -2, 3, 0, 0, -1),
        (-2, -1, 0, 1, -2, 2, 3, 5, -2, 1, 0, 0, -6),
        (0, -3, -3, 3, -1, -1, -5, 4, 1, 1, 0, 0, -27),
    ),
}


def starting(name):
    """A table of STARTS as weights."""
    return [[0.05 * steps for steps in row] for row in STARTS[name]]


cdef float[KNOWN][FITTED] BY_KNOWN = starting("BY_KNOWN")
cdef float[LENGTHS][FITTED] BY_LENGTH = starting("BY_LENGTH")
cdef float[3][FITTED] BY_AGREEMENT = starting("BY_AGREEMENT")
cdef float[OWN_STANDINGS * STORE_STANDINGS][FITTED] BY_STANDING = starting("BY_STANDING")
cdef float[LENGTHS][FITTED] BY_STORE_LENGTH = starting("BY_STORE_LENGTH")
# P(right) of a top-k candidate by its probability bucket, of another token by the top one's bucket.
cdef float[9] TOP = [0.6, 0.5, 0.4, 0.3, 0.17, 0.1, 0.05, 0.03, 0.03]
cdef float[9] NO_TOP = [0.03, 0.03, 0.03, 0.03, 0.03, 0.04, 0.03, 0.03, 0.03]
# P(right) of a head's candidate by its probability bucket, of another token by the first one's.
cdef float[12] HEAD = [0.95, 0.88, 0.82, 0.75, 0.65, 0.55, 0.45, 0.33, 0.18, 0.08, 0.03, 0.01]
cdef float[12] NO_HEAD = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.1, 0.1, 0.1, 0.1]
# Factors on its odds by what else suggests the candidate.
cdef float[4] AGREES = [0.7, 1, 1.5, 3]
cdef float[4] UNEMITTED_SHARE = [0.015, 0.005, 0.003, 0.002]    # per token, by the positions since
cdef float[4] SURPRISE = [0.4, 0.2, 0.1, 0.4]     # per context that had one continuation so far


cdef float newest_prior(int m, int seen, int others):
    """P(right) of the latest continuation of a context, by buckets of counts."""
    cdef float count = COUNT_OF[seen]
    if seen == 0:
        return 0.02
    if others == 0:
        return 1 - SURPRISE[m] / count
    return max((count - 0.8) / (count + COUNT_OF[others]), 0.18)


cdef float store_prior(int length, int seen, int others):
    """P(right) of what followed a store's match, by buckets of its length and counts."""
    cdef float count = COUNT_OF[seen], faint = 0.06 if length < 8 else 0.02
    if seen == 0:
        return faint
    if others == 0:
        return 1 - 1 / (1 + STORE_SURE[length] * count)
    return max(0.8 * (count - 0.5) / (count + COUNT_OF[others] + 0.5), faint)


cdef float nearest_prior(int rank, int bucket, int length):
    """P(right) of the token near the last copy, by rank, distance, and the match's length."""
    cdef float odds = PLACE_SURE[length]
    odds = max(odds, 1.5) if bucket < 2 else max(odds, 1) if bucket == 2 else odds * 0.625
    return 0.03 if rank == 0 else 0.08 + 0.015 * length if rank == 1 else odds / (1 + odds)


cdef float head_prior(bint ranked, int chance, int agreement):
    """P(right) of a candidate by the head's bucket, and by what else suggests it."""
    cdef float p = HEAD[chance] if ranked else NO_HEAD[chance], odds
    odds = p / (1 - p) * AGREES[agreement]
    return odds / (1 + odds)


cdef float recent_prior(int age, int seen):
    """P(next) of a recent token where there is no candidate, by buckets of age and count."""
    cdef float share = 0.006 * max(seen, 0.5)
    return share / 2 if age == 0 or age == AGES - 1 else share


cdef class Calibration:
    """Counts and weights of one drafter, shared by its sequences. They contain no tokens."""

    cdef Cell cells[CELLS]
    cdef float weights[SETS][INPUTS]
    cdef float further[STANDINGS][INPUTS]   # added to ``weights``

    def __cinit__(self):
        cdef int i, m, seen, others, least, s
        cdef bint ranked
        for m in range(CONTEXTS):
            for seen in range(COUNTS):
                for others in range(COUNTS):
                    i = ((m * COUNTS + seen) * COUNTS + others) * 2
                    self.begin(i, 0.02 if seen == 0 else 0.6 - 0.04 * others)
                    self.begin(i + 1, newest_prior(m, seen, others))
        for i in range(LENGTHS):
            least = LENGTH_OF[i]
            self.begin_pair(MATCH_CELLS + 2 * i, 0.15 / least, 1 - 1.0 / least)
        for i in range(RESUMED * LENGTHS):
            self.begin_pair(RESUME_CELLS + 2 * i, 0.25, 0.25)
        for i in range(NEAR_SINCE * NEAR_LENGTHS * DISTANCES):
            least = max(i // DISTANCES % NEAR_LENGTHS, 1)
            self.begin_pair(NEAR_CELLS + 2 * i, 0.06, least / (least + 2.0))
        for i in range(LENGTHS):
            least = min(i, 3)
            self.begin(SESSION_CELLS + i, 0.1 + 0.08 * least if least else GUESS)
        for i in range(AGES * COUNTS):
            self.begin(RECENT_CELLS + i, recent_prior(i % AGES, i // AGES), PRIOR_SHARE)
        for s in range(2):
            for i in range(2 * LENGTHS * COUNTS * COUNTS):
                self.begin(STORE_CELLS + s * STORE_BLOCK + i, store_prior(
                    i // (COUNTS * COUNTS) % LENGTHS, i // COUNTS % COUNTS, i % COUNTS
                ), PRIOR_STORE)
        for i in range(TOP_RANKS * PROBABILITIES * AGED):
            m = i // AGED % PROBABILITIES
            least = i // (AGED * PROBABILITIES)
            ranked = least < TOP_RANKS - 1
            self.begin(TOP_CELLS + i, TOP[m] if ranked else NO_TOP[m])
        for i in range(LATEST * PROBABILITIES * 2):
            self.begin(
                UNEMITTED_CELLS + i,
                UNEMITTED_SHARE[i // (2 * PROBABILITIES)] * (1 + i % 2),
                PRIOR_SHARE,
            )
        for i in range(2 * RANKED * STORE_DISTANCES * LENGTHS):
            self.begin(NEAREST_CELLS + i, nearest_prior(
                i // (LENGTHS * STORE_DISTANCES) % RANKED, i // LENGTHS % STORE_DISTANCES,
                i % LENGTHS,
            ), PRIOR_STORE)
        for i in range(TOP_RANKS * CHANCES * AGREEMENTS):
            m = i // AGREEMENTS % CHANCES
            self.begin(HEAD_CELLS + i, head_prior(
                i // (AGREEMENTS * CHANCES) < TOP_RANKS - 1, m, i % AGREEMENTS
            ), PRIOR_HEAD)
        for s in range(3 * LENGTHS):
            for i in range(INPUTS):
                self.weights[s][i] = WEIGHTS[i]
            self.weights[s][MATCH_INPUT] += 0.05 * (s // 3)
        for s in range(3 * LENGTHS, HEADLESS_SETS):
            for i in range(FITTED):  # where a store has candidates
                self.weights[s][i] = (
                    BY_KNOWN[(s // (3 * LENGTHS) - 1) % KNOWN][i] + BY_LENGTH[s // 3 % LENGTHS][i]
                    + BY_AGREEMENT[s % 3][i]
                )
        for s in range(1, STANDINGS):
            m = (s - 1) // LENGTHS % (OWN_STANDINGS * STORE_STANDINGS)
            for i in range(FITTED):
                self.further[s][i] = BY_STANDING[m][i] + BY_STORE_LENGTH[(s - 1) % LENGTHS][i]
        self.weights[0][SESSION_INPUT] = 1  # where nothing else is known
        self.weights[0][BIAS] = 0
        for s in range(HEADLESS_SETS):
            for i in range(FITTED):
                self.weights[HEADLESS_SETS + s][i] = BESIDE_HEAD * self.weights[s][i]
            self.weights[HEADLESS_SETS + s][HEAD_INPUT] = WEIGHTS[HEAD_INPUT]

    cdef void begin_pair(self, int cell, float other, float same) noexcept:
        """Set the priors of a candidate that is not the token at a place, and of one that is."""
        self.begin(cell, other)
        self.begin(cell + 1, same)

    cdef void begin(self, int cell, float prior, float verified=PRIOR) noexcept:
        self.cells[cell].right = verified * prior
        self.cells[cell].verified = verified
        self.cells[cell].stretch = stretch(self.cells[cell].right, self.cells[cell].verified)

    def copy(self):
        """An independent copy."""
        cdef Calibration other = Calibration()
        other.cells, other.weights, other.further = self.cells, self.weights, self.further
        return other

    def to_array(self):
        """Every count and weight, float32 (n,), for tests and to inspect what is stored."""
        cells = [(self.cells[i].right, self.cells[i].verified) for i in range(CELLS)]
        weights = [self.weights[s][i] for s in range(SETS) for i in range(INPUTS)]
        weights += [self.further[s][i] for s in range(STANDINGS) for i in range(INPUTS)]
        return np.concatenate((np.array(cells, np.float32).ravel(), np.array(weights, np.float32)))

    cdef void mix(self, Candidates* all) noexcept nogil:
        """Set the candidates' log-odds from their cells."""
        cdef const float* weights
        cdef const float* further
        cdef float z
        cdef int i, k
        for k in range(all.n):
            weights, further = self.weights[all.set[k]], self.further[all.standing[k]]
            z = (weights[BIAS] + further[BIAS]) * CONSTANT
            for i in range(all.inputs):
                z += (
                    (weights[all.input[i]] + further[all.input[i]])
                    * self.cells[all.cell[i][k]].stretch
                )
            all.odds[k] = min(max(z, <float>-12), <float>12)

    cdef inline float share(self, int cell) noexcept nogil:
        """P(a recent or unemitted top-k token is next) where there is no candidate."""
        return self.cells[cell].right / self.cells[cell].verified

    cdef void learn_share(self, int which, bint right) noexcept nogil:
        """Learn whether a recent or unemitted top-k token was next where no candidate was."""
        cdef Cell* cell = &self.cells[which]
        cell.right += right
        cell.verified += 1
        if cell.verified > HALVE_SHARE_AT:
            cell.right *= 0.5
            cell.verified *= 0.5

    cdef void learn(self, const Candidates* all, int k, float p, bint right) noexcept nogil:
        """Learn whether the ``k``-th candidate, of probability ``p``, was the next token."""
        cdef float wrong = <float>right - p
        cdef float error = wrong * (
            RATE_STORE if all.set[k] % HEADLESS_SETS >= 3 * LENGTHS else RATE
        )
        cdef float error_further = wrong * (RATE_FURTHER if all.standing[k] else 0)
        cdef float* weights = self.weights[all.set[k]]
        cdef float* further = self.further[all.standing[k]]
        cdef float counted[INPUTS]
        cdef float verified[INPUTS]
        cdef float stretches[INPUTS]
        cdef Cell* cell
        cdef int i
        for i in range(INPUTS):
            counted[i], verified[i] = 1, 2
        for i in range(all.inputs):
            cell = &self.cells[all.cell[i][k]]
            weights[all.input[i]] += error * cell.stretch
            further[all.input[i]] += error_further * cell.stretch
            counted[i], verified[i] = cell.right + right, cell.verified + 1
            if verified[i] > HALVE_AT:
                counted[i] *= 0.5
                verified[i] *= 0.5
        stretch_all(counted, verified, stretches, INPUTS)
        for i in range(all.inputs):
            cell = &self.cells[all.cell[i][k]]
            cell.right, cell.verified, cell.stretch = counted[i], verified[i], stretches[i]
        weights[BIAS] += error * CONSTANT
        further[BIAS] += error_further * CONSTANT
