"""N-gram frequency table: contexts of 1..order-1 tokens in one flat table, see count_order.pxd."""

from libc.stdint cimport int8_t, int32_t, uint64_t

from ngramspec._native.count_order cimport Context, CountOrder


cdef class NGramTable:
    cdef readonly int order
    cdef readonly object window
    cdef Py_ssize_t n               # tokens counted so far, including forgotten ones
    cdef Py_ssize_t width           # the window's length; 0: no window
    cdef int32_t tail[8]            # the last order - 1 tokens, oldest first
    cdef int tail_n
    cdef int32_t* ring              # the window's tokens, at position modulo width
    cdef Context* slots             # open addressing, linear probing, at most 2/3 full
    cdef Py_ssize_t slot_cap, slot_n
    cdef CountOrder counts
    cdef readonly uint64_t salt
    cdef bint busy                  # an operation is running without the GIL

    cdef Context* context_of(self, object context) except? NULL
    cdef int idle(self) except -1
    cdef int enter(self) except -1
    cdef Py_ssize_t find(self, uint64_t key) noexcept nogil
    cdef int append(self, int32_t token) noexcept nogil
    cdef void forget(self) noexcept nogil
    cdef int grow(self) noexcept nogil
    cdef void erase(self, Py_ssize_t slot) noexcept nogil
    cdef Py_ssize_t backoff(self, const int32_t* context, int n, int* order) noexcept nogil
    cdef int chain(
        self, const int32_t* prefix, Py_ssize_t n, int32_t* out, int8_t* orders, int gamma
    ) noexcept nogil
