"""What followed each context lately: one 32-byte slot per context, in segments that split.

    directory   2**bits pointers, by the key's highest bits: extendible hashing; a doubled one
                begins empty, and an entry is taken from the one before when it is first needed
    segment     open addressing on the key's lowest bits, at most 3/4 full; a full one splits in two

A directory has at most ``2 * SPARSEST`` entries a segment: 2 kB beside 8, whatever the contexts.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t

cdef enum:
    LEADERS = 3         # continuations kept per context
    SEGMENT = 256       # slots
    MOST_BITS = 28      # of a directory
    SPARSEST = 64       # entries a segment beyond which no directory doubles

cdef struct Slot:       # 32 bytes, never across two cache lines; empty while total == 0
    uint64_t key
    int32_t token[LEADERS]      # continuations, the most recent first; NONE behind the last
    uint8_t count[LEADERS]
    uint8_t total               # of all continuations, forgotten ones included
    int32_t last                # position of the most recent continuation

cdef struct Segment:
    int32_t depth       # bits of the key that all its contexts share
    int32_t used
    int32_t aligned[14]
    Slot slots[SEGMENT]

cdef extern from *:
    """
    #define NGS_PREFETCH(p) __builtin_prefetch(p)
    """
    void prefetch_line "NGS_PREFETCH" (const void* p) nogil
cdef void note(Slot* c, int32_t token, int32_t at) noexcept nogil


cdef class ContextTable:
    cdef Segment** directories[MOST_BITS + 1]   # by their bits; NULL before the first
    cdef Segment** directory                    # the newest
    cdef int bits
    cdef Segment** segments     # each once, to free them
    cdef Py_ssize_t segment_cap, segment_n
    cdef readonly uint64_t salt

    cdef uint64_t key_of(self, object context, int seed) except? 0
    cdef const Slot* find(self, uint64_t key) noexcept nogil
    cdef int count(self, uint64_t key, int32_t token, int32_t at) noexcept nogil
    cdef Segment* take_segment(self, int depth) noexcept nogil
    cdef int split(self, uint64_t key) noexcept nogil
    cdef Segment* inherit(self, uint64_t key) noexcept nogil

    cdef inline Segment* segment(self, uint64_t key) noexcept nogil:
        cdef Segment* s = self.directory[key >> (64 - self.bits)]
        return s if s != NULL else self.inherit(key)

    cdef inline void prefetch(self, uint64_t key) noexcept nogil:
        """Start loading a context's slot."""
        prefetch_line(&self.segment(key).slots[key & (SEGMENT - 1)])


cdef inline int leader(const Slot* c) noexcept nogil:
    """Index of the most frequent continuation, the more recent of equals."""
    cdef int best = 0, i
    for i in range(1, LEADERS):
        if c.count[i] > c.count[best]:
            best = i
    return best
