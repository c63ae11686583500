"""The leading continuations of every context, found with one cache miss.

A context keeps ``LEADERS`` continuations in order of recency. A new one replaces the one with the
lowest count; on ties, the oldest. At ``FADE_AT`` all its counts are halved. The counts are
therefore exact for contexts with few continuations, recent for those with many, and a context has a
fixed size. The NGramTable has exact counts of everything.

Invariant: a context's counts are the result of counting its continuations in order under these
rules, independent of the table's layout. Costs: find and count O(1) at worst, where a count splits
one segment of 8 kB; no step ever moves the whole table. Memory: 32 bytes per context at
3/8 to 3/4 load, and at most 2 kB of directory per segment. Contexts are identified by their 64-bit
hash only, as in the NGramTable. One thread at a time.

A full segment that may not split, because the directory would become too sparse, accepts no new
context. That needs some 190 contexts whose keys begin alike, which does not happen under a secret
salt.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ngramspec._native.common cimport NONE, process_salt, reserve, start_of, token_view
from ngramspec._native.xxh64 cimport xxh64

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void** p, size_t alignment, size_t size)

cdef enum:
    FADE_AT = 255
    FULL = 3 * SEGMENT // 4
    LONGEST = 7


cdef class ContextTable:
    """Leading continuations by context."""

    def __cinit__(self):
        self.salt = process_salt()
        self.bits = 1
        self.directory = self.directories[1] = <Segment**>calloc(2, sizeof(Segment*))
        if self.directory == NULL:
            raise MemoryError("context table")
        self.directory[0] = self.directory[1] = self.take_segment(0)
        if self.directory[0] == NULL:
            raise MemoryError("context table")

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.segment_n):
            free(self.segments[i])
        free(self.segments)
        for i in range(MOST_BITS + 1):
            free(self.directories[i])

    def __len__(self):
        """Contexts known."""
        cdef Py_ssize_t i, used = 0
        for i in range(self.segment_n):
            used += self.segments[i].used
        return used

    def add(self, context, int token, int at, int seed=0):
        """Count that ``token``, at position ``at``, followed a context (int32, 0..7 tokens)."""
        if token < 0:
            raise ValueError(f"token must be >= 0, got {token}")
        if self.count(self.key_of(context, seed), token, at) < 0:
            raise MemoryError("context table")

    def get(self, context, int seed=0):
        """([(token, count), ...] by recency, total, last position), or None if never seen."""
        cdef const Slot* found = self.find(self.key_of(context, seed))
        cdef Slot c
        cdef int i
        if found == NULL:
            return None
        c = found[0]  # making lists may run the garbage collector, which may call ``add``
        kept = [(c.token[i], c.count[i]) for i in range(LEADERS) if c.token[i] != NONE]
        return kept, c.total, c.last

    def sizeof(self):
        """Bytes allocated."""
        return (
            sizeof(ContextTable)
            + (2 << self.bits) * sizeof(Segment*)
            + self.segment_cap * sizeof(Segment*)
            + self.segment_n * sizeof(Segment)
        )

    def longest_probe(self):
        """Largest number of slots inspected to find a context; 1 without collisions. O(n)."""
        cdef Py_ssize_t i, j, longest = 0
        for i in range(self.segment_n):
            for j in range(SEGMENT):
                if self.segments[i].slots[j].total:
                    home = self.segments[i].slots[j].key & (SEGMENT - 1)
                    longest = max(longest, ((j - home) & (SEGMENT - 1)) + 1)
        return longest

    def check_integrity(self):
        """Walk all slots and directory entries; raise an AssertionError on a broken invariant."""
        cdef Py_ssize_t i, j, k
        cdef Segment* s
        cdef Slot* c
        assert self.bits == 1 or 1 << self.bits <= 2 * SPARSEST * self.segment_n, "too sparse"
        for i in range(self.segment_n):
            s, used = self.segments[i], 0
            assert s.depth <= self.bits and s.used <= FULL
            for j in range(SEGMENT):
                c = &s.slots[j]
                if c.total == 0:
                    continue
                used += 1
                assert self.find(c.key) == c, "a context cannot be found again"
                assert sum([c.count[k] for k in range(LEADERS)]) <= c.total < FADE_AT
                for k in range(LEADERS):
                    assert (c.token[k] == NONE) <= (c.count[k] == 0)
            assert used == s.used
        for i in range(1 << self.bits):
            s = self.segment(<uint64_t>i << (64 - self.bits))
            for j in range(SEGMENT):
                if s.slots[j].total and s.depth:
                    assert s.slots[j].key >> (64 - s.depth) == <uint64_t>i >> (self.bits - s.depth)

    cdef uint64_t key_of(self, object context, int seed) except? 0:
        cdef const int32_t[::1] view = token_view(context, "context")
        if view.shape[0] > LONGEST:
            raise ValueError(f"context must have 0..{LONGEST} tokens, got {view.shape[0]}")
        return xxh64(start_of(view), <int>view.shape[0], <uint64_t>seed, self.salt)

    cdef const Slot* find(self, uint64_t key) noexcept nogil:
        """A context's slot, valid until the next count; NULL if it was never seen."""
        cdef Segment* s = self.segment(key)
        cdef int i = <int>(key & (SEGMENT - 1))
        while s.slots[i].total != 0:
            if s.slots[i].key == key:
                return &s.slots[i]
            i = (i + 1) & (SEGMENT - 1)
        return NULL

    cdef int count(self, uint64_t key, int32_t token, int32_t at) noexcept nogil:
        """Count a continuation: 0, or -1 without memory and with nothing changed."""
        cdef Segment* s
        cdef int i, k, failed
        while True:
            s = self.segment(key)
            i = <int>(key & (SEGMENT - 1))
            while s.slots[i].total != 0 and s.slots[i].key != key:
                i = (i + 1) & (SEGMENT - 1)
            if s.slots[i].total != 0:
                break
            if s.used < FULL:
                s.used += 1
                s.slots[i].key = key
                for k in range(LEADERS):
                    s.slots[i].token[k] = NONE
                    s.slots[i].count[k] = 0
                break
            failed = self.split(key)
            if failed:
                return -1 if failed < 0 else 0
        note(&s.slots[i], token, at)
        return 0

    cdef Segment* take_segment(self, int depth) noexcept nogil:
        """A new empty segment, or NULL."""
        cdef Segment* s
        if reserve(
            <void**>&self.segments, &self.segment_cap, self.segment_n + 1, sizeof(Segment*)
        ) < 0 or posix_memalign(<void**>&s, 64, sizeof(Segment)):
            return NULL
        memset(s, 0, sizeof(Segment))
        s.depth = depth
        self.segments[self.segment_n] = s
        self.segment_n += 1
        return s

    cdef Segment* inherit(self, uint64_t key) noexcept nogil:
        """Copy a key's directory entry from the newest older directory that has it."""
        cdef int bits = self.bits
        cdef Segment* s = NULL
        while s == NULL:
            bits -= 1
            s = self.directories[bits][key >> (64 - bits)]
        self.directory[key >> (64 - self.bits)] = s
        return s

    cdef int split(self, uint64_t key) noexcept nogil:
        """Split a key's segment by one more bit: 0, -1 without memory, 1 if it may not split.
        """
        cdef Segment* s = self.segment(key)
        cdef Segment* t
        cdef Segment old
        cdef Segment** doubled
        cdef Py_ssize_t i, half, first
        if s.depth == self.bits:
            if self.bits == MOST_BITS or 1 << self.bits > SPARSEST * self.segment_n:
                return 1
            doubled = <Segment**>calloc(<size_t>2 << self.bits, sizeof(Segment*))
            if doubled == NULL:
                return -1
            self.bits += 1
            self.directory = self.directories[self.bits] = doubled
        t = self.take_segment(s.depth + 1)
        if t == NULL:
            return -1
        memcpy(&old, s, sizeof(Segment))
        memset(s, 0, sizeof(Segment))
        s.depth = old.depth + 1
        half = <Py_ssize_t>1 << (self.bits - s.depth)
        first = <Py_ssize_t>(key >> (64 - self.bits)) & ~(2 * half - 1)
        for i in range(first, first + half):  # entries of s may not have been copied yet
            self.directory[i] = s
            self.directory[i + half] = t
        for i in range(SEGMENT):
            if old.slots[i].total:
                put(t if (old.slots[i].key >> (64 - s.depth)) & 1 else s, &old.slots[i])
        return 0


cdef inline void put(Segment* s, const Slot* c) noexcept nogil:
    """Copy a slot into a segment that has room and does not contain it."""
    cdef int i = <int>(c.key & (SEGMENT - 1))
    while s.slots[i].total != 0:
        i = (i + 1) & (SEGMENT - 1)
    s.slots[i] = c[0]
    s.used += 1


cdef void note(Slot* c, int32_t token, int32_t at) noexcept nogil:
    """Count a continuation in its slot and make it the most recent."""
    cdef int i, k = 0
    cdef uint8_t seen
    while k < LEADERS and c.token[k] != token:
        k += 1
    if k == LEADERS:
        k = LEADERS - 1
        for i in range(LEADERS - 2, -1, -1):
            if c.count[i] < c.count[k]:
                k = i
        c.count[k] = 0
    seen = c.count[k] + 1
    while k > 0:
        c.token[k] = c.token[k - 1]
        c.count[k] = c.count[k - 1]
        k -= 1
    c.token[0] = token
    c.count[0] = seen
    c.last = at
    c.total += 1
    if c.total == FADE_AT:
        c.total = FADE_AT // 2
        for i in range(LEADERS):
            c.count[i] >>= 1
