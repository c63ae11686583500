"""Text that outlives a request: a source's interface to the structures."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    SEPARATOR = 0x7fffffff  # not a token
    STORE_PLACES = 32   # places followed at once, bits of ``live``
    AHEAD = 64          # tokens buffered per place

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
