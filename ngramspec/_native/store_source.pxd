"""What every store is to a sequence that drafts from it: places behind a context, and their text.

A position is an int64 that means something to its source alone, but ``at + n`` is n tokens on.
"""

from libc.stdint cimport int32_t, int64_t

cdef struct Found:      # a place to follow
    int64_t at          # position of the next token
    int32_t length      # tokens before it that agree with the context


cdef class StoreSource:
    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil
    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil
    cdef void credit(self, int64_t at, int n) noexcept nogil
    cdef bint earlier(self, int64_t at) noexcept nogil


cdef class StorePair(StoreSource):
    cdef StoreSource first, second
