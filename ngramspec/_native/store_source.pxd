"""Text that outlives a request: a source's interface to the structures."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    SEPARATOR = 0x7fffffff  # not a token
    STORE_PLACES = 32   # places followed at once, bits of ``live``
    AHEAD = 64          # tokens buffered per place
    KIN_LEVELS = 4      # beginnings of a prompt: of KIN_LEAST tokens, and each twice the one before
    KIN_LEAST = 8

cdef struct Found:      # a place to follow
    int64_t at          # position of the next token
    int32_t length      # number of preceding tokens that agree with the context
    int32_t kin         # how much of the prompts' beginnings agrees, 0..KIN_LEVELS


cdef inline bint is_behind(const Found* place, int length, int kin) noexcept nogil:
    """Whether a place comes after one of this length and kin: longest first, then nearest kin."""
    return place.length < length or (place.length == length and place.kin < kin)


cdef class StoreSource:
    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil
    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil
    cdef void credit(self, int64_t at, int n) noexcept nogil
    cdef bint earlier(self, int64_t at) noexcept nogil
