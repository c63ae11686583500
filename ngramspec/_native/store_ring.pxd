"""Text of earlier requests in a ring, with the latest places of short contexts.

    ring    capacity codes: token ids, SEPARATOR before each document
    heads   for each level, by the hash of that many tokens: the latest place after them
    links   for each level and place: the previous place with the same hash

Positions count all codes ever written, so none is reused; a position's slot is position % capacity.
Heads and links keep its last 32 bits. They may refer to text that was overwritten, or to that of
another context, so every place is compared with the text before it is used. Links only go back.
"""

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from ngramspec._native.store_source cimport Found
from ngramspec._native.store_tally cimport SEPARATOR

cdef enum:
    RING_LEVELS = 3     # context lengths that have places
    RING_DEEPEST = 64   # maximum number of a context's tokens that are compared
    WALK = 48           # maximum number of a context's places that are compared
    STEPS = 192         # maximum number of links that are followed for them
    BATCH = 64          # tokens added under one lock
    COPIED = 4096       # codes copied or erased under one lock
    CODE_BYTES = 4 + 8 * RING_LEVELS    # memory per code
    LEAST_CAPACITY = 16
    TAIL = 6            # tokens of the longest context that has places
    OWN_RANGES = 32     # ranges of a stream's own text that are remembered

cdef struct Range:      # positions begin <= p < end
    uint64_t begin, end

cdef struct Own:        # ranges of a stream's own text, the newest at ``last``
    Range ranges[OWN_RANGES]
    int n, last


cdef inline bint is_own(const Own* own, uint64_t at) noexcept nogil:
    cdef int i
    for i in range(own.n):
        if own.ranges[i].begin <= at < own.ranges[i].end:
            return True
    return False


cdef class StoreRing:
    cdef PyThread_type_lock lock
    cdef int32_t* ring
    cdef uint32_t* heads[RING_LEVELS]
    cdef uint32_t* links[RING_LEVELS]
    cdef readonly uint64_t capacity     # in codes; 0: closed
    cdef readonly uint64_t written      # codes ever written, which is the next one's position
    cdef uint64_t oldest        # position of the oldest code that may be read
    cdef uint64_t owner         # stream of the last code; 0: no stream continues there
    cdef uint64_t owners        # number of streams so far
    cdef int32_t tail[TAIL]     # the last tokens of the last document, newest last
    cdef int have               # number of tokens in ``tail``
    cdef uint64_t salt
    cdef int64_t tokens         # number of tokens that may be read
    cdef int64_t ever, look_ups, hits, accepted     # counts, see ``counts``
    cdef int32_t largest        # largest token id ever written, or -1
    cdef int64_t held, most_held        # operations under the lock: current, and the maximum

    cdef void take(self) noexcept nogil
    cdef void release(self) noexcept nogil
    cdef void forget(self) noexcept nogil
    cdef bint erase(self, uint64_t slot) noexcept nogil
    cdef uint32_t bucket(self, int level, const int32_t* end) noexcept nogil
    cdef void put(self, int32_t code, bint found) noexcept nogil
    cdef void place(self) noexcept nogil
    cdef int add(
        self, uint64_t owner, const int32_t* before, int have, const int32_t* tokens, int n,
        Own* own
    ) noexcept nogil
    cdef int agreement(
        self, uint64_t at, uint64_t slot, const int32_t* end, Py_ssize_t have
    ) noexcept nogil
    cdef int walk(
        self, int level, uint32_t bucket, const int32_t* end, Py_ssize_t have, const Own* own,
        Found* into, int n, int most
    ) noexcept nogil
    cdef int look(
        self, const int32_t* end, Py_ssize_t have, const Own* own, Found* into, int most
    ) noexcept nogil
    cdef int read(self, uint64_t at, int32_t* into, int most, int32_t limit) noexcept nogil
    cdef void credit(self, int64_t n) noexcept nogil
    cdef uint64_t new_owner(self) noexcept nogil
    cdef void end(self, uint64_t owner) noexcept nogil
