"""Text that outlives a request: what the value engine reads of a store.

The meaning of a position, an int64, is known only to its source, but ``at + n`` is n tokens on.
"""

from libc.stdint cimport int32_t, int64_t

import numpy as np

from ngramspec._native.common cimport check_ids, tokens_of

BORDER = SEPARATOR
BEGINNINGS = tuple(KIN_LEAST << level for level in range(KIN_LEVELS))

cdef int64_t SECOND = <int64_t>1 << 52    # added to the second store's positions


cdef class StoreSource:
    """Text that outlives a request."""

    def find(self, context, int most=STORE_PLACES):
        """Places after a context, int32 (n,): [(position, matched tokens), ...], longest first."""
        cdef Py_ssize_t have = 0
        cdef const int32_t* tokens = tokens_of(context, &have, "context")
        cdef Found found[STORE_PLACES]
        cdef int i, n
        check_ids(tokens, have)
        if not 1 <= most <= STORE_PLACES:
            raise ValueError(f"most must be in 1..{STORE_PLACES}, got {most}")
        with nogil:
            n = self.look(tokens + have, have, found, most)
        return [(found[i].at, found[i].length) for i in range(n)]

    def tokens_at(self, int64_t at, int most):
        """At most ``most`` tokens from a position, and at most 64: int32 (n,)."""
        cdef int32_t into[AHEAD]
        cdef int n
        with nogil:
            n = self.read(at, into, min(most, <int>AHEAD))
        return np.array([into[i] for i in range(n)], np.int32)

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        """Find places after the ``have`` tokens before ``end``, the longest first; how many."""
        return 0

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        """Copy at most ``most`` tokens from a position; fewer at a document's end."""
        return 0

    cdef void credit(self, int64_t at, int n) noexcept nogil:
        """Count ``n`` accepted tokens from a position; a store may ignore this."""

    cdef bint earlier(self, int64_t at) noexcept nogil:
        """Whether a position is in the text of earlier requests, which has separate cells."""
        return False


cdef class StorePair(StoreSource):
    """Two stores as one: the places of both, the longest first, then the nearest kin, the first's.

    The second may be a pair.
    """

    cdef StoreSource first, second

    def __cinit__(self, StoreSource first not None, StoreSource second not None):
        self.first, self.second = first, second

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        cdef Found other[STORE_PLACES]
        cdef int n, m, i, j, k
        n = self.first.look(end, have, into, most)
        m = self.second.look(end, have, other, min(most, <int>STORE_PLACES))
        for i in range(m):
            other[i].at += SECOND
            j = n
            while j and is_behind(&into[j - 1], other[i].length, other[i].kin):
                j -= 1
            if j == most:
                break
            n = min(n + 1, most)
            for k in range(n - 1, j, -1):
                into[k] = into[k - 1]
            into[j] = other[i]
        return n

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        if at >= SECOND:
            return self.second.read(at - SECOND, into, most)
        return self.first.read(at, into, most)

    cdef void credit(self, int64_t at, int n) noexcept nogil:
        if at >= SECOND:
            self.second.credit(at - SECOND, n)
        else:
            self.first.credit(at, n)

    cdef bint earlier(self, int64_t at) noexcept nogil:
        if at >= SECOND:
            return self.second.earlier(at - SECOND)
        return self.first.earlier(at)
