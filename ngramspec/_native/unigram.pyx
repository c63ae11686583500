"""Unigram counts, the fallback of Leviathan et al. 2023, section 3.6.

Invariant: ``top`` has the highest count; on ties, it occurred last. O(1) per token, amortised over
growth; 12 to 24 bytes per distinct token. One thread at a time.
"""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

from ngramspec._native.common cimport NONE, TokenStructure, process_salt, scatter

cdef struct Count:      # 8 bytes; empty while count == 0
    int32_t token
    int32_t count


cdef class UnigramCounts(TokenStructure):
    """Counts of each token, and the most frequent one."""

    cdef Count* slots   # open addressing on the salted token id, at most 2/3 full
    cdef Py_ssize_t cap, used
    cdef int32_t top            # most frequent token; on ties, the more recent
    cdef int32_t top_count
    cdef uint64_t salt

    def __cinit__(self):
        self.name = "unigram table"
        self.salt = process_salt()
        self.cap = 64
        self.top = NONE
        self.slots = <Count*>calloc(64, sizeof(Count))
        if self.slots == NULL:
            raise MemoryError("unigram counts")

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        """Tokens counted."""
        return self.n

    def best(self):
        """(token, count) of the most frequent token, on ties the more recent; None when empty."""
        self.idle()
        return (self.top, self.top_count) if self.n else None

    def count(self, int token):
        """How often ``token`` occurred."""
        self.idle()
        return self.slots[self.find(token)].count

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(UnigramCounts) + self.cap * sizeof(Count)

    def longest_probe(self):
        """Largest number of slots inspected to find a token; 1 without collisions. O(n)."""
        cdef Py_ssize_t i, longest = 0
        self.idle()
        for i in range(self.cap):
            if self.slots[i].count:
                home = self.home(self.slots[i].token)
                longest = max(longest, ((i - home) & (self.cap - 1)) + 1)
        return longest

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        cdef Py_ssize_t i
        total, used = 0, 0
        self.idle()
        for i in range(self.cap):
            if self.slots[i].count:
                used += 1
                total += self.slots[i].count
                assert self.find(self.slots[i].token) == i, "a token cannot be found again"
                assert self.slots[i].count <= self.top_count, "the top is not the most frequent"
        assert total == self.n and used == self.used and 3 * used <= 2 * self.cap
        assert self.n == 0 or self.slots[self.find(self.top)].count == self.top_count

    cdef inline Py_ssize_t home(self, int32_t token) noexcept nogil:
        return <Py_ssize_t>(scatter(<uint64_t>token ^ self.salt) & <uint64_t>(self.cap - 1))

    cdef Py_ssize_t find(self, int32_t token) noexcept nogil:
        cdef Py_ssize_t mask = self.cap - 1
        cdef Py_ssize_t i = self.home(token)
        while self.slots[i].count != 0 and self.slots[i].token != token:
            i = (i + 1) & mask
        return i

    cdef int append(self, int32_t token) noexcept nogil:
        cdef Count* old = self.slots
        cdef Count* grown
        cdef Py_ssize_t i, old_cap = self.cap
        if 3 * (self.used + 1) > 2 * old_cap:
            grown = <Count*>calloc(<size_t>(2 * old_cap), sizeof(Count))
            if grown == NULL:
                return -1
            self.slots = grown
            self.cap = 2 * old_cap
            for i in range(old_cap):
                if old[i].count != 0:
                    grown[self.find(old[i].token)] = old[i]
            free(old)
        i = self.find(token)
        if self.slots[i].count == 0:
            self.slots[i].token = token
            self.used += 1
        self.slots[i].count += 1
        if self.slots[i].count >= self.top_count:
            self.top = token
            self.top_count = self.slots[i].count
        return 0
