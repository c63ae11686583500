"""The tokens that may come next at a position of a draft, each with its probability."""

from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.calibration cimport (
    AGES, RECENT_CELLS, UNEMITTED_CELLS, Calibration, Candidates,
)
from ngramspec._native.evidence cimport (
    PROBABILITIES, UNEMITTED, HeadRow, HeadRows, Row, TopTokens, Unemitted,
)
from ngramspec._native.store_reader cimport StoreReader, Votes
from ngramspec._native.text cimport ORDERS, PLACES, CommittedText, Keys, Slot

cdef enum:
    FROM_COPY = 0           # sources of a drafted token
    FROM_RESUME = 1
    FROM_NGRAM = 2
    FROM_UNIGRAM = 3
    FROM_STORE = 4
    FROM_TOP = 5
    FROM_HEAD = 6

cdef struct Position:       # after the committed text and a path of draft tokens
    int32_t context[ORDERS + 1]     # the last tokens, and room for a guess of the next
    int32_t have            # number of last tokens
    int32_t depth           # tokens in the path
    float reach             # P(the path)
    bint follows[PLACES]    # whether the path is the text at a place; a resumed copy: always true
    int32_t length          # the match's length, while the path follows it
    int32_t placed[PLACES]  # the token at each place, or NONE
    Keys copied             # keys of the contexts after the match's token
    uint64_t live           # bits of the store's places that the path follows
    Votes votes             # the next tokens at these places
    bint headed             # whether the path is a drafting head's
    int32_t leads           # the first token of the head's row, or NONE
    bint fallback           # whether the only candidate is the most frequent token
    int32_t recycled        # candidates from this index on are only top-k candidates
    int32_t ranked          # from this index on they are only a drafting head's
    int32_t best            # index of the most probable candidate
    Candidates candidates


cdef inline bint is_candidate(const Position* at, int32_t token) noexcept nogil:
    cdef int i
    for i in range(at.candidates.n):
        if at.candidates.token[i] == token:
            return True
    return False


cdef inline int source_of(const Position* at, int32_t token, int otherwise) noexcept nogil:
    """The source of a token, see ``ValueEngine.draft``; ``otherwise`` if no other applies."""
    cdef int i
    if token == at.placed[0]:
        return FROM_COPY
    if token == at.leads:
        return FROM_HEAD
    for i in range(1, PLACES):
        if token == at.placed[i]:
            return FROM_RESUME
    for i in range(at.votes.n):
        if token == at.votes.token[i]:
            return FROM_STORE
    for i in range(at.recycled, at.candidates.n):
        if token == at.candidates.token[i]:
            return FROM_TOP if i < at.ranked else FROM_HEAD
    return otherwise


cdef inline int count_bucket(int n) noexcept nogil:
    """The bucket 0..6 of a count: 0..3 unchanged, then up to 5, up to 9, and more."""
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


cdef inline int recent_cell(int count, int age) noexcept nogil:
    """A recent token's cell: by its count, and the bit length of the number of others since."""
    return RECENT_CELLS + AGES * count_bucket(count) + age


cdef inline int unemitted_cell(int back, int probability, bint recent) noexcept nogil:
    """An unemitted top-k token's cell: by positions since, probability, and recency."""
    return UNEMITTED_CELLS + (back * PROBABILITIES + probability) * 2 + recent


cdef class Estimator:
    cdef Calibration calibration
    cdef CommittedText committed
    cdef StoreReader store  # or None
    cdef TopTokens top_tokens  # or None
    cdef HeadRows head      # or None
    cdef bint counts, falls_back
    cdef Unemitted unemitted[UNEMITTED]  # top-k tokens that were not emitted before the last tree
    cdef int unemitted_n

    cdef void estimate(self, Position* at, const Slot** known, float least) noexcept nogil
    cdef int collect(
        self, Position* at, const Slot** known, const Row* row, const HeadRow* head, float least
    ) noexcept nogil
    cdef void describe(
        self, Position* at, const Slot** known, const Row* row, const HeadRow* head
    ) noexcept nogil
    cdef int collect_store(
        self, const Votes* votes, float least, int32_t* tokens, int count
    ) noexcept nogil
    cdef void count_unemitted(self) noexcept nogil
    cdef inline bint is_unemitted(self, const Position* at, int32_t token) noexcept nogil:
        """Whether a token is offered at a position as an unemitted top-k token."""
        cdef int i
        if at.depth == 0:
            for i in range(self.unemitted_n):
                if self.unemitted[i].token == token:
                    return True
        return False

    cdef void learn(self, const Position* at, int32_t token, bint tree) noexcept nogil
    cdef void learn_unemitted(self, const Position* at, int32_t token) noexcept nogil
