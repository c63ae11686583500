"""Unigram counts: open addressing on the salted token id."""

from libc.stdint cimport int32_t, uint64_t

cdef struct Count:      # 8 bytes; empty while count == 0
    int32_t token
    int32_t count


cdef class UnigramCounts:
    cdef Count* slots   # at most 2/3 full
    cdef Py_ssize_t cap, used
    cdef Py_ssize_t n           # tokens counted
    cdef int32_t top            # most frequent token; on ties, the more recent
    cdef int32_t top_count
    cdef uint64_t salt
    cdef bint busy

    cdef int idle(self) except -1
    cdef Py_ssize_t home(self, int32_t token) noexcept nogil
    cdef Py_ssize_t find(self, int32_t token) noexcept nogil
    cdef int add(self, int32_t token) noexcept nogil
