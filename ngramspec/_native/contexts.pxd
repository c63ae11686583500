"""What recently followed each context: one 32-byte slot per context, in segments that split.

    directory   2**bits pointers, by the key's highest bits: extendible hashing. A doubled directory
                begins empty; an entry is copied from the previous one when it is first needed
    segment     open addressing on the key's lowest bits, at most 3/4 full; splits in two when full

A directory has at most ``2 * SPARSEST`` entries per segment: at most 2 kB per segment of 8 kB.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t

cdef enum:
    LEADERS = 3         # continuations kept per context
    SEGMENT = 256       # slots of a segment
    MOST_BITS = 28      # of a directory's index
    SPARSEST = 64       # directory entries per segment above which no directory doubles

cdef struct Slot:       # 32 bytes, never across two cache lines; empty while total == 0
    uint64_t key
    int32_t token[LEADERS]      # continuations, the most recent first; NONE after the last
    uint8_t count[LEADERS]
    uint8_t total               # of all continuations, including those no longer kept
    int32_t last                # position of the most recent continuation

cdef struct Segment:
    int32_t depth       # number of key bits that all its contexts share
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
    cdef Segment** directories[MOST_BITS + 1]   # indexed by their bits; NULL before the first
    cdef Segment** directory                    # the newest
    cdef int bits
    cdef Segment** segments     # each once, for freeing
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
    """Index of the most frequent continuation; on ties, the more recent."""
    cdef int best = 0, i
    for i in range(1, LEADERS):
        if c.count[i] > c.count[best]:
            best = i
    return best
