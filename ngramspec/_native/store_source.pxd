"""The interface between stores and a sequence: places after a context, and the text at them.

The meaning of a position, an int64, is known only to its source, but ``at + n`` is n tokens on.
"""

from libc.stdint cimport int32_t, int64_t

cdef struct Found:      # a place to follow
    int64_t at          # position of the next token
    int32_t length      # number of preceding tokens that agree with the context


cdef class StoreSource:
    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil
    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil
    cdef void credit(self, int64_t at, int n) noexcept nogil
    cdef bint earlier(self, int64_t at) noexcept nogil
