"""A corpus in a mapped file: its tokens, and every place in them sorted by the tokens before it.

    text      N codes: the documents, with a separator before the first and after each
    places    M positions q in the text, sorted by the tokens before q, read backwards
    next      M codes: the token at each place, so that an interval's continuations are contiguous
    keys      the last tokens before every 16th place, packed; every 16th of those; and so on
    wide      the precomputed leading continuations of intervals of more than WIDE places
    slots     open addressing on an interval's bounds -> its entry in ``wide``

The places after one context are an interval, and those after a longer one lie inside it. No place
has a separator before it or at it, so a match never spans documents and always has a continuation.
"""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ngramspec._native.store_codes cimport Key, Query
from ngramspec._native.store_source cimport Found, StoreSource
from ngramspec._native.xxh64 cimport P1, P2

cdef enum:
    DEEPEST = 64        # maximum number of a context's tokens that are compared
    STEP = 16           # places between two sampled keys, keys between two of the next level
    LEVELS = 8          # enough for 16 ** 8 places
    WIDE = 128          # intervals of up to this many places are counted at look-up: TALLIED
    LEADING = 8         # precomputed continuations of a wider interval
    PROBES = 64         # maximum number of slots inspected
    GALLOP = 8          # places inspected in steps; beyond, an edge is searched from the top
    BACKOFFS = 3        # nested intervals that places are taken from

cdef struct Wide:       # 72 bytes
    uint32_t first, end
    uint32_t token[LEADING]     # by count; on ties, the lower id first
    uint32_t count[LEADING]     # 0 after the last

cdef struct Interval:
    int64_t first, end  # places
    int32_t length      # tokens before each that agree


cdef inline uint64_t slot_of(uint32_t first, uint32_t end) noexcept nogil:
    """The first slot to inspect for an interval's entry; part of the file format."""
    cdef uint64_t x = (<uint64_t>first << 32 | end) * P1
    x = (x ^ (x >> 29)) * P2
    return x >> 20


cdef inline const Wide* find_wide(
    const Wide* wides, const uint32_t* slots, uint64_t wide_n, uint64_t slot_n,
    const Interval* found
) noexcept nogil:
    """An interval's precomputed entry, or NULL."""
    cdef uint64_t i = slot_of(<uint32_t>found.first, <uint32_t>found.end)
    cdef uint32_t entry
    cdef int _k
    if wide_n == 0:
        return NULL
    for _k in range(PROBES):
        entry = slots[i & (slot_n - 1)]
        if entry == 0 or entry > wide_n:
            return NULL
        if (
            wides[entry - 1].first == <uint32_t>found.first
            and wides[entry - 1].end == <uint32_t>found.end
        ):
            return &wides[entry - 1]
        i += 1
    return NULL


cdef class CorpusIndex(StoreSource):
    cdef Py_buffer sections[6]          # held while this object lives
    cdef int held
    cdef const uint8_t* text
    cdef const uint8_t* next
    cdef const uint32_t* places
    cdef const Key* keys[LEVELS]
    cdef uint64_t key_n[LEVELS]
    cdef int levels
    cdef const Wide* wides
    cdef const uint32_t* slots
    cdef uint64_t wide_n, slot_n
    cdef readonly uint64_t n, m         # number of codes in the text, and of places
    cdef readonly int width             # bytes per code
    cdef readonly int32_t limit         # exclusive upper bound of the token ids

    cdef Py_ssize_t size(self, int section, int each) except -1
    cdef int lay_keys(self) except -1
    cdef Interval found(self, context) except *
    cdef int ask(self, const int32_t* end, Py_ssize_t have, Query* query) noexcept nogil
    cdef int32_t before(self, uint64_t place, int i) noexcept nogil
    cdef int agreement(self, const Query* q, int64_t place, int most) noexcept nogil
    cdef bint precedes(self, const Query* q, uint64_t place, int most, bint ties) noexcept nogil
    cdef uint64_t narrow(
        self, const Query* q, int level, uint64_t low, uint64_t high, int most, bint ties
    ) noexcept nogil
    cdef void bound(
        self, const Query* q, int most, int first, int behind, int64_t* into
    ) noexcept nogil
    cdef int find(self, const Query* q, Interval* found) noexcept nogil
    cdef void around(self, const Query* q, const Interval* inner, Interval* found) noexcept nogil
    cdef void prefetch(self, int64_t place) noexcept nogil
    cdef void prefetch_edges(self, int64_t first, int64_t end) noexcept nogil
    cdef int64_t edge(self, const Query* q, int64_t at, int length, int side) noexcept nogil
    cdef int leaders(
        self, const Interval* found, int32_t* tokens, int64_t* counts, int most
    ) noexcept nogil
    cdef int spread(
        self, const Interval* over, const Interval* but, Found* into, int most
    ) noexcept nogil
