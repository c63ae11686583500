"""The tokens that may come next at a position of a draft, each with its probability."""

from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.calibration cimport Calibration, Candidate
from ngramspec._native.committed cimport CommittedText
from ngramspec._native.contexts cimport LEADERS, Slot
from ngramspec._native.keys cimport CONTEXTS, ORDERS, Keys
from ngramspec._native.places cimport PLACES
from ngramspec._native.runners cimport RANKS, UNSAID, Row, RunnersUp, Unsaid
from ngramspec._native.store_reader cimport STORE_LEADERS, StoreReader, Votes

cdef enum:
    MOST_CANDIDATES = PLACES + CONTEXTS * LEADERS + STORE_LEADERS + 2 * RANKS + 1
    FROM_COPY = 0           # sources of a drafted token
    FROM_RESUME = 1
    FROM_NGRAM = 2
    FROM_UNIGRAM = 3
    FROM_STORE = 4
    FROM_RUNNER = 5

cdef struct Position:       # behind the committed text and a path of drafted tokens
    int32_t context[ORDERS + 1]     # the last tokens, and room for a guess at the next
    int32_t have            # of the last tokens
    int32_t depth           # tokens in the path
    float reach             # P(the path)
    bint follows[PLACES]    # whether the path is what comes at a place; a resumed copy: always
    int32_t length          # of the match, while the path follows it
    int32_t placed[PLACES]  # the token at each place, or NONE
    Keys copied             # of the contexts behind the match's token
    uint64_t live           # the store's places that the path follows
    Votes votes             # what comes next at them
    bint fallback           # whether the only candidate is the most frequent token
    int32_t count
    int32_t recycled        # candidates from here on only the target's runners-up give
    int32_t best            # the most probable candidate
    Candidate candidates[MOST_CANDIDATES]


cdef inline bint is_candidate(const Position* at, int32_t token) noexcept nogil:
    cdef int i
    for i in range(at.count):
        if at.candidates[i].token == token:
            return True
    return False


cdef inline int source_of(const Position* at, int32_t token, int otherwise) noexcept nogil:
    """Which source a token has, see ``ValueEngine.draft``; ``otherwise``, if no more is known."""
    cdef int i
    if token == at.placed[0]:
        return FROM_COPY
    for i in range(1, PLACES):
        if token == at.placed[i]:
            return FROM_RESUME
    for i in range(at.votes.n):
        if token == at.votes.token[i]:
            return FROM_STORE
    if token == at.votes.resumed:
        return FROM_STORE
    for i in range(at.recycled, at.count):
        if token == at.candidates[i].token:
            return FROM_RUNNER
    return otherwise


cdef class Estimator:
    cdef Calibration calibration
    cdef CommittedText committed
    cdef StoreReader store  # or None
    cdef RunnersUp runners  # or None
    cdef bint counts, falls_back
    cdef Unsaid unsaid[UNSAID]  # what the target left unsaid before the last tree
    cdef int unsaid_n
    cdef float acceptance   # decayed share of right best candidates in this sequence

    cdef void estimate(self, Position* at, const Slot** known, float least) noexcept nogil
    cdef int collect(
        self, Position* at, const Slot** known, const Row** rows, float least, int32_t* tokens
    ) noexcept nogil
    cdef int add_cells(
        self, Candidate* c, const Position* at, const Slot** known, int acceptance, int length
    ) noexcept nogil
    cdef int add_store_cells(self, Candidate* c, const Position* at) noexcept nogil
    cdef void add_place_cells(self, Candidate* c, const Votes* votes, int i) noexcept nogil
    cdef int collect_store(
        self, const Votes* votes, float least, int32_t* tokens, int count
    ) noexcept nogil
    cdef int collect_runners(
        self, const Row* row, float least, int32_t* tokens, int count
    ) noexcept nogil
    cdef void count_unsaid(self) noexcept nogil
    cdef void find_rows(self, const Position* at, const Row** rows) noexcept nogil
    cdef void add_runner_cell(
        self, Candidate* c, int input, int first, const Row* row
    ) noexcept nogil
    cdef inline bint is_unsaid(self, const Position* at, int32_t token) noexcept nogil:
        """Whether a token is offered at a position because the target left it unsaid."""
        cdef int i
        if at.depth == 0:
            for i in range(self.unsaid_n):
                if self.unsaid[i].token == token:
                    return True
        return False

    cdef void learn(self, const Position* at, int32_t token, bint tree) noexcept nogil
    cdef void learn_unsaid(self, const Position* at, int32_t token) noexcept nogil
